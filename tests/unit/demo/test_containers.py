"""The demo's worker and gateway: what they ask for, count, and do when the service is away."""

import asyncio
import itertools
import random

import pytest
from pydantic import ValidationError

from fairsched import AsyncJob, errors
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.demo.containers.gateway import Gateway, draw_request
from scheduler_service.demo.containers.settings import GatewaySettings, UserLoad, WorkerSettings
from scheduler_service.demo.containers.tally import Tally
from scheduler_service.demo.containers.worker import simulate

WAITING = decision_pb2.REQUEST_STATE_WAITING
LEASED = decision_pb2.REQUEST_STATE_LEASED
SUCCEEDED = decision_pb2.REQUEST_STATE_SUCCEEDED
EXPIRED = decision_pb2.REQUEST_STATE_EXPIRED


class FakeClient:
    """Accepts everything; shows the given states, one a call, then sets `silent` and waits."""

    def __init__(self, *states, fail_first=0):
        self.states, self.fail_first = iter(states), fail_first
        self.enqueued, self.cancelled, self.known = [], [], []
        self.silent = asyncio.Event()

    async def enqueue(self, request):
        self.enqueued.append(request.request_id)
        if len(self.enqueued) <= self.fail_first:
            raise errors.unavailable("away")
        return pb.EnqueueResponse(state=WAITING)

    async def get_request(self, pool, request_id, *, wait, known_state):
        self.known.append(known_state)
        state = next(self.states, None)
        if state is None:
            self.silent.set()
            await asyncio.Event().wait()
        info = pb.RequestInfo(request_id=request_id, user_id="u", state=state, cost=5)
        return pb.GetRequestResponse(request=info)

    async def cancel(self, pool, request_id, reason):
        self.cancelled.append(request_id)


def _settings(tmp_path, **more):
    return GatewaySettings(alive_file=tmp_path / "alive", think_seconds=1e-9, **more)


async def _serve_until_silent(gateway, client):
    """Is one client of one user until the service says nothing more; then stops it."""
    serving = asyncio.create_task(gateway.serve_client(UserLoad.parse("u:1x1+1"), 0))
    async with asyncio.timeout(5):
        await client.silent.wait()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def test_load_of_a_user_is_one_word():
    """`bulk:60x1500+500` is 60 clients with prompts of 1500 and outputs of 500 tokens."""
    load = UserLoad.parse("bulk:60x1500+500")

    assert load == UserLoad(user_id="bulk", clients=60, prompt_tokens=1500, output_tokens=500)


@pytest.mark.parametrize("text", ["", "bulk", "bulk:60", "bulk:x1+1", "bulk:0x1+1", "a b:1x1+1"])
def test_bad_load_is_refused(text):
    """Anything else is refused with a sentence, not taken for something near it."""
    with pytest.raises(ValueError, match=r"bulk:60x1500|greater than or equal to 1"):
        UserLoad.parse(text)


def test_environment_sets_everything(monkeypatch):
    """Users come from DEMO_USERS, apart by spaces; numbers are checked."""
    monkeypatch.setenv("DEMO_USERS", "a:1x2+3 b:4x5+6")
    monkeypatch.setenv("DEMO_SLOTS", "0")

    assert [load.user_id for load in GatewaySettings().users] == ["a", "b"]
    with pytest.raises(ValidationError, match="slots"):
        WorkerSettings()


def test_drawn_requests_are_repeatable_and_within_their_caps():
    """The same seed draws the same lengths; no output is longer than its cap."""
    load = UserLoad.parse("u:1x100+50")
    rngs = random.Random(3), random.Random(3)
    drawn = [[draw_request("p", load, rng) for _ in range(500)] for rng in rngs]

    assert [r.metadata for r in drawn[0]] == [r.metadata for r in drawn[1]]
    assert len({r.request_id for r in itertools.chain(*drawn)}) == 1000
    for request in drawn[0]:
        assert request.prompt_tokens >= 1
        assert 1 <= int(request.metadata["output_tokens"]) <= request.max_output_tokens == 200
    assert 80 < sum(r.prompt_tokens for r in drawn[0]) / 500 < 120


def test_tally_prints_shares_and_waits():
    """A line a user: what is done, its share of the cost, mean and P99 of the waits."""
    tally = Tally()
    for user_id, cost, wait_s in (("a", 30, 1), ("a", 30, 3), ("b", 20, 0)):
        info = pb.RequestInfo(user_id=user_id, cost=cost, state=SUCCEEDED)
        info.enqueue_time.FromSeconds(100)
        info.first_dispatch_time.FromSeconds(100 + wait_s)
        tally.note(info)
    tally.note(pb.RequestInfo(user_id="b", state=EXPIRED))
    tally.fail("b")

    assert list(tally.lines()) == [
        "user=a done=2 other=0 cost=60 share=75% wait_mean=2.00s wait_p99=3.00s",
        "user=b done=1 other=2 cost=20 share=25% wait_mean=0.00s wait_p99=0.00s",
    ]
    assert list(tally.lines()) == []


async def test_client_follows_its_request_to_the_end(tmp_path):
    """The gateway says what it knows, counts the end, shows life, and asks again."""
    client, settings = FakeClient(WAITING, LEASED, SUCCEEDED), _settings(tmp_path)
    gateway = Gateway(client, settings)
    await _serve_until_silent(gateway, client)

    assert client.known == [WAITING, WAITING, LEASED, WAITING]
    assert len(set(client.enqueued)) == 2
    assert settings.alive_file.exists()
    assert [line.split()[:3] for line in gateway.tally.lines()] == [["user=u", "done=1", "other=0"]]


async def test_client_repeats_the_same_id_while_the_service_is_away(tmp_path):
    """A refused connection changes nothing: the request goes again under its id."""
    client = FakeClient(fail_first=2)
    await _serve_until_silent(Gateway(client, _settings(tmp_path)), client)

    assert len(client.enqueued) == 3
    assert len(set(client.enqueued)) == 1


async def test_no_life_is_shown_for_what_did_not_succeed(tmp_path):
    """A request that expired is counted as such, and is no sign of health."""
    client, settings = FakeClient(EXPIRED), _settings(tmp_path)
    gateway = Gateway(client, settings)
    await _serve_until_silent(gateway, client)

    assert not settings.alive_file.exists()
    assert [line.split()[:3] for line in gateway.tally.lines()] == [["user=u", "done=0", "other=1"]]


async def test_stopped_gateway_takes_back_what_waits(tmp_path):
    """What is still waiting when the gateway ends is cancelled by id, and nothing else."""
    client = FakeClient(SUCCEEDED, WAITING)
    gateway = Gateway(client, _settings(tmp_path))
    await _serve_until_silent(gateway, client)
    await gateway.take_back()

    assert client.cancelled == client.enqueued[1:]


@pytest.mark.parametrize(
    ("metadata", "used"),
    [({"prompt_tokens": "7", "output_tokens": "3"}, (7, 3)), ({}, (11, 0))],
)
async def test_worker_reports_what_it_used(metadata, used):
    """Usage is what the gateway's metadata says, else the cost."""
    dispatch = pb.Dispatch(cost=11, metadata=metadata)
    usage = await simulate(WorkerSettings(tokens_per_second=1e9), AsyncJob(dispatch))

    assert (usage.prompt_tokens, usage.output_tokens) == used
