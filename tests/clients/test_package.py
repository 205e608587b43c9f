"""The client as a package: what it needs, what it ships, which protobuf it loads under."""

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import fairsched

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "clients" / "python" / "fairsched"
ALLOWED = {"fairsched", "google", "grpc"} | set(sys.stdlib_module_names)

CHECK = """
import sys
import google.protobuf, grpc
import fairsched
with fairsched.Fairsched(sys.argv[1]) as client:
    request = fairsched.new_request(pool=sys.argv[2], user_id="acme", cost=1)
    assert client.enqueue(request).sequence > 0
    try:
        client.enqueue(fairsched.new_request(pool=sys.argv[2], user_id="", cost=1))
    except fairsched.InvalidRequestError as error:
        assert error.field_violations, error
print(google.protobuf.__version__, grpc.__version__)
"""


def test_needs_only_what_it_says():
    """The package imports only the standard library, gRPC, protobuf and the common protos."""
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])

    assert imported - ALLOWED == set()


def test_ships_the_retry_policy():
    """The policy in the package is the one for all clients."""
    assert (PACKAGE / "retry.json").read_text() == (ROOT / "clients" / "retry.json").read_text()


def test_exports_are_documented():
    """Everything exported has a docstring, and the list is sorted."""
    names = fairsched.__all__

    assert names == sorted(names)
    assert [name for name in names if not getattr(fairsched, name).__doc__] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protobuf", "grpcio"), [("protobuf==6.33.5", "grpcio==1.81.1"), ("protobuf>=7,<8", "grpcio")]
)
def test_loads_under(target, pool, tmp_path, protobuf, grpcio):
    """The package works with the oldest protobuf and gRPC that it allows, and with the newest."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*install, protobuf, grpcio, "googleapis-common-protos"],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    if done.returncode and "No matching distribution" not in done.stderr:
        pytest.skip(f"no package index can be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    checked = subprocess.run(
        [python, "-W", "error", "-c", CHECK, target, pool],
        capture_output=True, text=True, check=False, env=environment, timeout=60,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.startswith(protobuf[10:].strip("=<>")[:1])
