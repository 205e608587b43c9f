"""What the README shows is what happens: its programs and its commands, run as they stand."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fairsched import Fairsched, new_request
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.clients.service_process import ServiceProcess
from tests.clients.test_samples import Program, finish

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
NOT_HERE = {"make", "docker"}
"""Programs whose commands other suites run, or only check for existence."""

ENDLESS = {"serve"}


def programs() -> dict[str, str]:
    """Returns the Python programs by the name in their first line."""
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", README, flags=re.DOTALL)
    return dict(blocks)


def session() -> list[tuple[str, str]]:
    """Returns every command of the README with the output shown below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                command, shown = found[-1]
                found[-1] = (command, f"{shown}\n{line}")
    return [pair for pair in found if shlex.split(pair[0])[0] not in NOT_HERE]


def words_of(text: str) -> str:
    """Returns a text with numbers, units of time and white space made alike."""
    alike = re.sub(r"\d[\d,.]*", "#", text)
    return " ".join(re.sub(r"# (ms|s|min|h)\b", "# s", alike).split())


def test_programs_run(own_service, tmp_path):
    """The worker and the gateway of the README run together."""
    for name, text in programs().items():
        here = text.replace("127.0.0.1:50051", own_service.target)
        (tmp_path / name).write_text(here)
    worker = Program([sys.executable, str(tmp_path / "worker.py")])
    try:
        said = finish([sys.executable, str(tmp_path / "gateway.py")])
        assert worker.stop() == 0
    finally:
        worker.stop()

    assert said == "runs on gpu-1 \n"
    assert own_service.stop() == 0


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A service in the state that the README's session begins with."""
    process = ServiceProcess(tmp_path_factory.mktemp("readme")).start()
    with Fairsched(process.target) as client:
        for number in range(1, 5):
            client.enqueue(request("acme", f"a{number}", 3000, 500))
        client.enqueue(request("zeta", "z1", 200, 50))
        call = pb.NextDispatchRequest(
            pools=["default"], worker_id="gpu-1", max_dispatches=2, hand_over_disabled=True
        )
        given = [d.request_id for d in client.scheduler.NextDispatch(call).dispatches]
        assert given == ["a1", "z1"]
    yield process
    process.ensure_gone()


def request(user_id: str, request_id: str, prompt: int, output: int) -> pb.EnqueueRequest:
    """Returns a request whose cost is known."""
    return new_request(
        pool="default",
        user_id=user_id,
        request_id=request_id,
        prompt_tokens=prompt,
        predicted_output_tokens=output,
    )


@pytest.mark.parametrize(("command", "shown"), session(), ids=lambda value: value[:40])
def test_session(scene, command, shown):
    """Each command works, and says what the README shows, but for the numbers."""
    words = shlex.split(command)
    assert words[0] == "fairsched"
    if words[1] in ENDLESS:
        words.append("--print-config")
    words = [str(scene.data_dir) if word == "fairsched-data" else word for word in words]
    environment = {**os.environ, "FAIRSCHED_TARGET": scene.target, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "scheduler_service", *words[1:]],
        capture_output=True, text=True, timeout=60, check=False, env=environment, cwd=ROOT,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert words_of(done.stdout).startswith(words_of(shown.removesuffix("\n…")))
    assert done.stdout.strip()
