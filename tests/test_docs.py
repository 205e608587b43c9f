"""What the documents say is so: commands, links, and the tables of names."""

import ast
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fairsched.v1 import admin_service_pb2, audit_service_pb2, scheduler_service_pb2
from scheduler_service.core.decisions import RequestState
from scheduler_service.core.policy import PoolPolicy
from tests.support.source import tree_of

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "scheduler_service").rglob("*.py"))
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(
        part.startswith(".") or part == "node_modules" for part in path.parts[len(ROOT.parts) :]
    )
)
CODES = {
    "Conflict": "ALREADY_EXISTS",
    "Denied": "PERMISSION_DENIED",
    "InvalidCommand": "INVALID_ARGUMENT",
    "LimitReached": "RESOURCE_EXHAUSTED",
    "NotReady": "UNAVAILABLE",
    "Superseded": "ABORTED",
    "Trimmed": "OUT_OF_RANGE",
    "Unauthenticated": "UNAUTHENTICATED",
    "Unknown": "NOT_FOUND",
    "WrongState": "FAILED_PRECONDITION",
}
"""Error class -> gRPC status, as `core/errors.py` draws it."""


def _table(document: str, marker: str) -> list[list[str]]:
    """Returns the rows of the table behind `<!-- marker: ... -->`, without back-ticks."""
    text = (ROOT / document).read_text()
    after = text.split(f"<!-- {marker}:", 1)[1].split("\n", 1)[1]
    lines = after.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def _calls() -> list[tuple[str, ast.Call]]:
    return [
        (ast.unparse(node.func).rsplit(".", 1)[-1], node)
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
    ]


def _reasons_in_code() -> dict[str, str]:
    """Returns the status of every reason that the service can raise."""
    found = {"INVALID_FIELDS": "INVALID_ARGUMENT"}
    for name, call in _calls():
        first = call.args[0] if call.args else None
        if name in CODES and isinstance(first, ast.Constant) and isinstance(first.value, str):
            assert found.setdefault(first.value, CODES[name]) == CODES[name], first.value
    return found


def test_reasons_are_documented():
    """The table of error reasons holds every reason the service can raise, and no other."""
    rows = _table("proto/README.md", "reasons")
    documented = {row[0]: row[1] for row in rows}

    assert len(documented) == len(rows)
    assert documented == _reasons_in_code()


def test_proto_comments_name_only_real_reasons():
    """A reason that a comment in the protos promises is in the table, with its status."""
    documented = {row[0]: row[1] for row in _table("proto/README.md", "reasons")}
    promised = {}
    for path in (ROOT / "proto" / "fairsched" / "v1").glob("*_service.proto"):
        text = re.sub(r"\n\s*//", "", path.read_text())
        for status, reasons in re.findall(r"`([A-Z_]+)`\s+\(((?:`[A-Z_]+`(?:,\s+)?)+)", text):
            for reason in re.findall(r"[A-Z_]+", reasons):
                promised[reason] = status

    assert len(promised) > 10
    assert {r: s for r, s in promised.items() if documented.get(r) != s} == {}


def test_ends_are_documented():
    """The table of ends holds every reason that the service ends a request with."""
    states = {row[1] for row in _table("proto/README.md", "ends")}
    documented = {row[0] for row in _table("proto/README.md", "ends")}
    constants = {
        argument.value
        for name, call in _calls()
        if name in {"end", "Ended"}
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and argument.value
    }

    assert constants
    assert constants - documented == set()
    assert states <= set(RequestState.__members__)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links(path):
    """A relative link in a document leads to something that exists."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src(?:set)?="([^"]+)"', text)
    broken = [
        target
        for target in targets
        if not re.match(r"[a-z]+:|#", target)
        and not (path.parent / target.split("#")[0]).resolve().exists()
    ]

    assert broken == []


def _console_commands() -> list[str]:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("command", _console_commands())
def test_readme_commands_exist(command):
    """Every command in the README names something that can be run."""
    words = shlex.split(command, comments=True)
    program = Path(words[0]).name
    if program == "make":
        check = ["make", "--dry-run", "--question", *[w for w in words[1:] if "=" not in w]]
        done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode in {0, 1}, done.stderr
    elif program == "fairsched":
        path = []
        for word in words[1:]:
            if not re.fullmatch(r"[a-z][a-z-]*", word):
                break
            path.append(word)
        assert _help_of(path), command
    else:
        assert program in {"buf", "cd", "curl", "docker", "git", "grpcurl", "kill", "node", "pip"}


def _help_of(path: list[str]) -> bool:
    """Returns whether `fairsched` knows these subcommands; the last words may be arguments."""
    while path:
        command = [str(ROOT / ".venv/bin/fairsched"), *path, "--help"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if done.returncode == 0:
            return True
        path = path[:-1]
    return False


def test_readme_sells_two_commands():
    """The README tells a newcomer the two commands that set up everything."""
    assert {"make demo", "make test"} <= set(_console_commands())


def test_tuning_defaults_are_those_of_the_code():
    """The defaults that the README's tuning table states are in force."""
    rows = _table("README.md", "tuning")
    policy = PoolPolicy()

    assert len(rows) > 5
    assert {row[0]: row[1] for row in rows} == {
        row[0]: str(getattr(policy, row[0])) for row in rows
    }


def test_retry_policy_is_the_documented_one():
    """The shipped policy covers every service, retries only UNAVAILABLE, and leaves streams out."""
    shipped = json.loads((ROOT / "clients" / "retry.json").read_text())
    streams, method = shipped["methodConfig"]
    services = [
        service
        for module in (scheduler_service_pb2, audit_service_pb2, admin_service_pb2)
        for service in module.DESCRIPTOR.services_by_name.values()
    ]

    assert set(streams) == {"name"}
    assert {(entry["service"], entry["method"]) for entry in streams["name"]} == {
        (service.full_name, found.name)
        for service in services
        for found in service.methods
        if found.client_streaming or found.server_streaming
    }
    assert [entry["service"] for entry in method["name"]] == [s.full_name for s in services]
    assert method["retryPolicy"] == {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "2s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE"],
    }
