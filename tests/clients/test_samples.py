"""The samples of every language, and every command on the shell page, against a real service."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fairsched import Fairsched
from fairsched.v1 import admin_service_pb2, decision_pb2

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
PYTHON = [sys.executable]
NODE_NEEDED = ("node", "npm")


class Program:
    """A sample as a process; its lines can be waited for."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()

    def has_said(self, pattern: str, within: float = 30) -> str:
        """Waits for a line in which a pattern is found, and returns it."""

        def found() -> str | None:
            return next((line for line in self.lines if re.search(pattern, line)), None)

        with self._changed:
            assert self._changed.wait_for(found, within), (self.lines, self.process.poll())
            return found()

    def stop(self) -> int:
        """Ends it with SIGTERM and returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(20)
        finally:
            self.process.kill()
            self._reader.join()
            self.process.stdout.close()
            self.process.stderr.close()


def finish(command: list[str]) -> str:
    """Runs a sample to its end and returns what it said."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    """The Node samples with their packages, in a copy beside `retry.json`."""
    missing = [name for name in NODE_NEEDED if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("clients")
    shutil.copy(CLIENTS / "retry.json", folder)
    shutil.copytree(
        CLIENTS / "node", folder / "node", ignore=shutil.ignore_patterns("node_modules")
    )
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(install, cwd=folder / "node", check=True, capture_output=True, timeout=240)
    return folder / "node"


def test_python_samples(target, pool, tmp_path):
    """Gateway, worker and audit tail in Python do what they say, and stop in order."""
    samples = CLIENTS / "python" / "samples"
    position = tmp_path / "position"
    tail = Program([*PYTHON, str(samples / "audit_tail.py"), target, str(position)])
    worker = Program([*PYTHON, str(samples / "worker.py"), target, pool, "gpu-1"])
    try:
        said = finish([*PYTHON, str(samples / "gateway.py"), target, pool, "acme", "10"])
        lines = said.splitlines()
        assert len(lines) == 10
        assert all(line.endswith("ran on gpu-1") for line in lines)
        request_id = lines[0].split(":")[0]
        tail.has_said(f"DECISION_KIND_COMPLETED acme {request_id}")
        assert worker.stop() == 0
        assert worker.lines[-1] == "gpu-1 ran 10 requests"
        first = int(position.read_text())
    finally:
        worker.stop()
        tail.stop()

    again = Program([*PYTHON, str(samples / "audit_tail.py"), target, str(position)])
    try:
        with Fairsched(target) as client:
            client.admin.SetUser(set_user(pool))
        line = again.has_said(f"USER_CONFIGURED {set_user(pool).user_id}")
    finally:
        again.stop()

    assert int(line.split()[0]) > first
    assert int(again.lines[0].split()[0]) == first + 1


def set_user(pool: str):
    """Returns a call that leaves a trace in the log."""
    return admin_service_pb2.SetUserRequest(pool=pool, user_id="marker", weight_milli=2000)


@pytest.mark.timeout(300)
def test_node_samples(node, target, pool):
    """Gateway, worker and audit tail in Node work by reflection, with no code of ours."""
    tail = Program(["node", str(node / "audit_tail.js"), target, "0"])
    worker = Program(["node", str(node / "worker.js"), target, pool, "node-1"])
    try:
        said = finish(["node", str(node / "gateway.js"), target, pool, "acme"])
        request_id = said.split(":")[0]
        assert f"{request_id}: runs on node-1" in said
        assert f"{request_id}: REQUEST_STATE_SUCCEEDED" in said
        tail.has_said(f"DECISION_KIND_COMPLETED acme {request_id}")
        worker.has_said(f"{request_id} of acme: ")
        assert worker.stop() == 0
    finally:
        worker.stop()
        tail.stop()
    with Fairsched(target) as client:
        info = client.get_request(pool, request_id).request

    assert info.state == decision_pb2.REQUEST_STATE_SUCCEEDED


def test_node_sees_the_reason(node, target):
    """A refusal's reason can be read in Node too."""
    command = ["node", str(node / "gateway.js"), target, "nowhere", "acme"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    assert done.stderr.strip() == "POOL_UNKNOWN"


def shell_commands() -> list[str]:
    """Returns the calls of the shell page."""
    text = (CLIENTS / "grpcurl" / "README.md").read_text()
    lines = re.findall(r"^\$ (.*)$", text, flags=re.MULTILINE)
    return [line for line in lines if line.startswith("call ")]


def test_shell_page(own_service):
    """Every call on the shell page works, in the order of the page, by reflection."""
    buf = Path(sys.executable).with_name("buf")
    assert len(shell_commands()) >= 8
    lease, answers = "", []
    for line in shell_commands():
        words = shlex.split(line.replace("LEASE", lease) if lease else line)[1:]
        words = [word.replace("127.0.0.1:50051", own_service.target) for word in words]
        command = [str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (line, done.stderr)
        answers.append(done.stdout)
        if "/NextDispatch" in line:
            lease = json.loads(done.stdout)["dispatches"][0]["leaseId"]

    assert "fairsched.v1.SchedulerService/Enqueue" in answers[0]
    assert json.loads(answers[3])["state"] == "REQUEST_STATE_SUCCEEDED"
    assert json.loads(answers[-1])["status"] == "SERVING"
    assert own_service.stop() == 0
