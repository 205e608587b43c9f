"""Plants the faults of the reports and shows that the tests of each row find them.

    python -m tests.reports.plant [R1 R2 …] [--control]

For each fault the sources are copied into a folder of their own, the fault is planted there, and
the row's tests run on the copy, in a process of their own; so do the services that they start.
Each of them must fail, by what it asserts or awaits: a test that passes does not show what its row
says, and one that cannot even be collected shows nothing.  `--control` plants nothing: then every
test must pass on the copy.
"""

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from tests.reports.fault import Fault
from tests.reports.faults import FAULTS
from tests.support.core import Edit
from tests.support.source import tree_of

ROOT = Path(__file__).parents[2]
TEST_SECONDS = 50
"""Time of a test that does not state its own."""

PROCESS_SECONDS = 400
"""Time of all runs of one test function."""

LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "node_modules", "build", "*.so"
)
"""Not sources; a compiled module would hide what is planted in its source."""

BROKEN = ("SyntaxError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError")
"""Faults that were written down wrongly end so; that does not count as found."""


class Result(NamedTuple):
    """How one test function ended on a copy.

    Attributes:
        test: As the table names it.
        outcome: `failed`, `passed`, or what kept it from being either.
        detail: The first line of what it said.
        seconds: Time taken.
    """

    test: str
    outcome: str
    detail: str
    seconds: float


class Copy:
    """A copy of the sources, with edits planted, in which tests run."""

    def __init__(self, folder: Path, edits: Iterable[Edit] = ()) -> None:
        self.folder = folder
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT, dirs_exist_ok=True)
        for edit in edits:
            path = folder / edit.place
            path.write_text(edit.applied(path.read_text()))
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()

    @property
    def environment(self) -> dict[str, str]:
        """The variables under which every process finds this copy, and not another one."""
        ours = ("PYTEST_", "FAIRSCHED_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        places = (self.folder, self.folder / "clients" / "python")
        return inherited | {"PYTHONPATH": os.pathsep.join(map(str, places))}

    def run(self, test: str) -> Result:
        """Runs one test function, or file, up to its first failure."""
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "pytest", node_of(test), "--exitfirst", "--quiet",
            "--override-ini", f"timeout={TEST_SECONDS}", "-p", "no:cacheprovider",
            "--junit-xml", str(report),
        ]  # fmt: skip
        began = time.monotonic()
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=PROCESS_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result(test, "without an end", "", time.monotonic() - began)
        seconds = time.monotonic() - began
        if not report.exists():
            return Result(test, "without a report", done.stderr.strip()[-200:], seconds)
        outcome, detail = _outcome(report, done.returncode)
        return Result(test, outcome, detail, seconds)


def node_of(test: str) -> str:
    """Returns what pytest calls a test of the table: with the class it is in, if it is in one."""
    file, _, function = test.partition("::")
    for node in ast.walk(tree_of(ROOT / "tests" / file)):
        if isinstance(node, ast.ClassDef) and function in {
            getattr(member, "name", "") for member in node.body
        }:
            return f"tests/{file}::{node.name}::{function}"
    return f"tests/{test}"


def _outcome(report: Path, code: int) -> tuple[str, str]:
    """Returns how a run ended, and the first line of why."""
    root = ET.parse(report).getroot()  # noqa: S314 - our own file
    failures = [x.get("message", "") for x in root.iter("failure")]
    errors = [x.get("message", "") for x in root.iter("error")]
    lines = "".join((*failures[:1], *errors[:1])).strip().splitlines() or [""]
    detail = lines[0]
    kinds = {line.split(":")[0] for line in (lines[0], lines[-1])}
    if code == 1 and failures and not any(kind.endswith(BROKEN) for kind in kinds):
        return "failed", detail
    if failures or errors:
        return "broken", detail
    passed = code == 0 and root.find(".//testcase") is not None
    if passed and root.find(".//skipped") is None:
        return "passed", ""
    return "not run", ""


def tried(fault: Fault) -> list[Result]:
    """Returns how the tests of a fault end on a copy with it."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Copy(Path(folder), fault.edits)
        return [copy.run(test) for test in fault.tests]


def controlled(faults: Iterable[Fault]) -> list[Result]:
    """Returns how the tests of these faults end on a copy without any."""
    tests = dict.fromkeys(test for fault in faults for test in fault.tests)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Copy(Path(folder))
        return [_said(copy.run(test)) for test in tests]


def _said(result: Result) -> Result:
    _say(f"    {result.outcome}: {result.test} ({result.seconds:.1f} s) {result.detail[:120]}")
    return result


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(argv: list[str] | None = None) -> int:
    """Tries the faults; returns 1 when a test did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="as in R1; without any, all of them")
    parser.add_argument("--control", action="store_true", help="plant nothing")
    options = parser.parse_args(argv)
    unknown = set(options.rows) - {row for fault in FAULTS for row in fault.rows}
    if unknown:
        parser.error(f"no fault for {', '.join(sorted(unknown))}")
    wanted = [x for x in FAULTS if not options.rows or set(options.rows) & set(x.rows)]
    if options.control:
        results, expected = controlled(wanted), "passed"
    else:
        results, expected = [], "failed"
        for number, fault in enumerate(wanted, 1):
            _say(f"{number}/{len(wanted)} {' '.join(fault.rows)}: {fault.name}")
            results += map(_said, tried(fault))
    wrong = [result for result in results if result.outcome != expected]
    _say(f"{len(results)} runs, {len(results) - len(wrong)} {expected} as they must")
    for result in wrong:
        _say(f"    {result.outcome}, not {expected}: {result.test} {result.detail}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
