"""A row of the table counts only with a planted fault that makes its tests fail."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.reports import plant
from tests.reports.fault import Fault, fault
from tests.reports.faults import FAULTS
from tests.reports.table import ROWS

ROOT = Path(__file__).parents[2]

ELSEWHERE = {
    "compose/test_engine.py": "needs a container engine",
    "property/random_traces.py": "runs more of the same, by hand",
}
"""What the table names and the runner cannot run, with the reason."""

FEW = ["R7", "R8", "R101", "R103", "R130"]
"""Rows that are quick to try: the manual, the core, a client, the server, a service."""


def _of(number: str) -> list[Fault]:
    return [one for one in FAULTS if number in one.rows]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_row_names_its_faults(row):
    """Every row has a planted fault, and the table says which."""
    assert list(row.faults) == [one.name for one in _of(row.number)] != []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_every_test_of_a_row_has_a_fault(row):
    """No test of the table is without a fault that it must find."""
    found = {test for one in _of(row.number) for test in one.tests}
    found |= {test.partition("::")[0] for test in found}

    assert set(row.tests) - found - ELSEWHERE.keys() == set()


def test_faults_are_those_of_the_table():
    """A fault is of a row there is, its tests are that row's, and its name is its own."""
    tests = {row.number: set(row.tests) for row in ROWS}
    strange = [
        (one.name, test)
        for one in FAULTS
        for test in one.tests
        if not {test, test.partition("::")[0]} & set.union(*(tests[row] for row in one.rows))
    ]

    assert strange == []
    assert [name for name, n in Counter(one.name for one in FAULTS).items() if n > 1] == []


@pytest.mark.parametrize("one", FAULTS, ids=lambda one: one.name)
def test_a_fault_can_be_planted(one):
    """Each text to change is there once; when the sources change, the fault must follow."""
    texts = {edit.place: (ROOT / edit.place).read_text() for edit in one.edits}
    for edit in one.edits:
        texts[edit.place] = edit.applied(texts[edit.place])

    for place, text in texts.items():
        if place.endswith(".py"):
            compile(text, place, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("number", FEW)
def test_a_few_faults_are_found(number):
    """The runner works; `python -m tests.reports.plant` tries all of them."""
    for one in _of(number):
        assert [(x.outcome, x.detail) for x in plant.tried(one) if x.outcome != "failed"] == []


@pytest.mark.slow
def test_without_a_fault_nothing_is_found(tmp_path):
    """Control: an unchanged copy passes, and it is the copy that runs."""
    copy = plant.Copy(tmp_path / "copy")
    said = subprocess.run(
        [sys.executable, "-c", "import fairsched, scheduler_service as s; print(s, fairsched)"],
        cwd=tmp_path,
        env=copy.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (one,) = _of("R103")

    assert said.count(str(copy.folder)) == 2
    assert [copy.run(test).outcome for test in one.tests] == ["passed"]


@pytest.mark.slow
def test_a_fault_that_breaks_everything_is_not_found():
    """Tests that cannot even begin show nothing."""
    (one,) = _of("R103")
    nonsense = ("scheduler_service/core/admission.py", "def pool_named(", "def pool_called(")
    broken = fault("R103", "nonsense", one.tests[0], nonsense)

    (result,) = plant.tried(broken)
    assert result.outcome not in {"failed", "passed"}
    assert "ImportError" in result.detail


def test_rows_and_refusals_of_the_command(capsys):
    """A row that is not there is an error, not a success without a run."""
    with pytest.raises(SystemExit):
        plant.main(["R3"])

    assert "no fault for R3" in capsys.readouterr().err
