"""Where a client cannot work it says so, instead of hanging or flooding the log."""

import asyncio
import os
import subprocess
import sys

import pytest

import fairsched
from fairsched import AsyncFairsched, Fairsched, new_request

FORK = """
import os, sys
import fairsched

client = fairsched.Fairsched(sys.argv[1])
client.ready()
child = os.fork()
if child == 0:
    try:
        client.enqueue(fairsched.new_request(pool="p", user_id="a", cost=1))
    except fairsched.MisuseError as error:
        print(error, flush=True)
        os._exit(7)
    os._exit(0)
_, status = os.waitpid(child, 0)
client.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_after_a_fork_it_refuses(target):
    """A client that was used before a fork refuses in the child, and says what to do."""
    environment = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FORK, target],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment,
    )

    assert done.returncode == 7, done.stderr
    assert "spawn" in done.stdout


async def test_second_loop_is_refused(client, pool):
    """While a client is open on one loop, another loop gets a clear error."""
    await client.enqueue(new_request(pool=pool, user_id="a", cost=1))

    async def elsewhere() -> str:
        other = AsyncFairsched("127.0.0.1:9")
        with pytest.raises(fairsched.MisuseError) as caught:
            await other.ready()
        with pytest.raises(fairsched.MisuseError) as again:
            await client.enqueue(new_request(pool=pool, user_id="a", cost=1))
        return f"{caught.value} {again.value}"

    said = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))

    assert "another event loop" in said
    assert "run_coroutine_threadsafe" in said


async def test_closed_client_is_refused(target):
    """A closed client says that it is closed."""
    client = AsyncFairsched(target)
    await client.ready()
    await client.close()
    with pytest.raises(fairsched.MisuseError, match="closed"):
        await client.ready()


def test_closed_sync_client_is_refused(target):
    """A closed client says that it is closed."""
    client = Fairsched(target)
    client.ready()
    client.close()
    with pytest.raises(fairsched.MisuseError, match="closed"):
        client.ready()


def test_nonsense_is_refused_before_any_call():
    """Settings that make no sense are refused where they are stated."""
    with pytest.raises(ValueError, match="timeout"):
        Fairsched("127.0.0.1:9", timeout=0)
    with pytest.raises(ValueError, match="max_local_in_flight"):
        fairsched.Open(max_local_in_flight=0)
    with Fairsched("127.0.0.1:9") as client:
        with pytest.raises(ValueError, match="concurrency"):
            client.worker("w", ["p"], lambda job: None, concurrency=0)
        with pytest.raises(ValueError, match="pool"):
            client.worker("w", [], lambda job: None)
