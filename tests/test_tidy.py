"""The shape of the code: sizes, places, pins and habits that no reviewer should have to check."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.source import tree_of

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    path
    for folder in ("scheduler_service", "clients/python")
    for path in (ROOT / folder).rglob("*.py")
    if not re.search(r"_pb2(_grpc)?\.py$", path.name)
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

MODULE_LINES_MAX = 350
FUNCTION_LINES_MAX = 70
LONG_MODULES = {"scheduler_service/core/decisions.py"}  # one list of records, no logic
"""The state machine itself may be long; nothing else may."""

TOP_LEVEL = {
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "clients",
    "docker-compose.yml",
    "proto",
    "pyproject.toml",
    "scheduler_service",
    "tests",
}
"""What a visitor sees first; dot-files are not counted."""

SLEEPING_SUITES = {
    "bench",
    "chaos",
    "clients",
    "compose",
    "crash",
    "integration",
    "reports",
    "support",
}
"""The suites that deal with real processes and real time."""


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_sizes(path):
    """A function fits a screen and a module has one reason to change."""
    text = path.read_text()
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in _functions(tree_of(path))
        if node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]

    assert long == []
    assert _name(path) in LONG_MODULES or text.count("\n") <= MODULE_LINES_MAX


def test_long_modules_exist():
    """The list of exceptions names only modules that are there."""
    assert {name for name in LONG_MODULES if not (ROOT / name).is_file()} == set()


def test_top_level():
    """The top level of the repository holds what the layout says, and nothing else."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    seen = {line.split("/")[0] for line in listed}

    assert {name for name in seen if not name.startswith(".")} - TOP_LEVEL == set()


@pytest.mark.parametrize("path", TESTS, ids=_name)
def test_tests_say_what_they_show(path):
    """Every test has a docstring: a sentence that is true when the test passes."""
    silent = [
        node.name
        for node in _functions(tree_of(path))
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]

    assert silent == []


@pytest.mark.parametrize("path", TESTS, ids=_name)
def test_tests_do_not_sleep(path):
    """Only suites with real processes sleep; all others await what they wait for."""
    if path.relative_to(ROOT / "tests").parts[0] in SLEEPING_SUITES:
        return
    sleeps = [
        f"line {node.lineno}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "sleep"}
        and [ast.unparse(argument) for argument in node.args] != ["0"]
    ]

    assert sleeps == []


def _pins(name: str) -> dict[str, str]:
    lines = (ROOT / ".ci" / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "every line is `name==version`"
    return {_normal(package): version for package, version in pairs}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _wanted() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["sim"], *extras["dev"]]
    names = {_normal(re.match(r"[A-Za-z0-9._-]+", line).group()) for line in lines}
    return names - {"fairsched"}


def test_every_dependency_is_pinned():
    """What the set-up installs is the same on every machine."""
    assert _wanted() - set(_pins("constraints.txt")) == set()


def test_generator_pins_are_of_the_oldest_protobuf_line():
    """Generated code is written for protobuf 6, so that it loads under 6 and 7."""
    assert _pins("constraints-gen.txt")["protobuf"].split(".")[0] == "6"
