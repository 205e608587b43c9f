"""An oracle that is told the state in the middle of a log agrees with the rest of it."""

import contextlib

import pytest

from scheduler_service.audit.seed import oracle_at
from scheduler_service.core import commands as c
from scheduler_service.core import snapshot
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State
from tests.support.traces import Trace


def _apply(state: State, command: c.Command) -> list:
    records: list = []
    with contextlib.suppress(SchedulerError):
        apply(state, command, records)
    return records


@pytest.mark.parametrize("seed", range(1, 61))
def test_from_the_middle(seed):
    """Wherever it begins, and through a snapshot, it finds nothing wrong with what follows."""
    history = Trace(seed, steps=80).run().history
    state, records, oracles = State(), 0, []
    for number, command in enumerate(history):
        if number % 9 == seed % 9:
            oracles.append(oracle_at(snapshot.restore(snapshot.dump(state))))
        for record in _apply(state, command):
            records += 1
            for oracle in oracles:
                assert oracle.feed(records, record) == []
        for oracle in oracles:
            assert oracle.finish() == []

    assert records > 20
    assert len(oracles) >= 5
