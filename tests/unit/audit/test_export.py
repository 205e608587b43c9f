"""Exports hold every decision, in the words of the API, and can be read back."""

import itertools
import json

import pyarrow.parquet as pq
import pytest
import pytest_asyncio

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.app.decision_filter import DecisionFilter
from scheduler_service.audit.export import Span, decisions, row_of, write_json, write_parquet
from scheduler_service.cli.output import plain
from scheduler_service.core import commands as c
from scheduler_service.sim.logtrace import read_any
from tests.support.engines import running


@pytest_asyncio.fixture
async def store():
    """A log of requests of three users, some completed, one cancelled, in many groups."""
    async with running() as rig:
        rig.create_pool()
        for number in range(30):
            rig.do(
                c.Enqueue,
                pool="p",
                request_id=f"r{number}",
                user_id=f"ü{number % 3}",
                cost=10 + number,
                prompt_tokens=7,
                expected_output_tokens=3 + number,
                labels=("a", "b") if number == 3 else (),
            )
            if number % 2:
                for request_id in rig.dispatch():
                    rig.complete(request_id, output_tokens=5 if number % 3 else -1)
            if number % 4 == 0:
                await rig.engine.durable()
        rig.do(c.Cancel, pool="p", request_id="r29")
        await rig.engine.durable()
        yield rig.store


def test_every_decision_with_its_hashes(store):
    """An export yields the whole log in order, and its hashes are those of the chain."""
    found = list(decisions(store, Span()))

    assert [x.sequence for x in found] == list(range(1, store.head().sequence + 1))
    assert found[0].previous_hash == bytes(32)
    for before, after in itertools.pairwise(found):
        assert after.previous_hash == before.hash
    assert found[-1].hash == store.head().chain_hash


@pytest.mark.parametrize(("after", "until"), [(0, 5), (7, 0), (7, 20), (50, 51), (10**6, 0)])
def test_a_span(store, after, until):
    """A span is the same part of the whole, hashes included, wherever groups begin."""
    whole = list(decisions(store, Span()))
    wanted = [x for x in whole if x.sequence > after and (not until or x.sequence <= until)]

    assert list(decisions(store, Span(after, until))) == wanted


def test_a_filter(store):
    """Only what matches is exported."""
    wanted = DecisionFilter(user_ids=frozenset({"ü1"}))
    found = list(decisions(store, Span(filter=wanted)))

    assert found
    assert {x.user_id for x in found} == {"ü1"}


def test_a_pruned_log(store):
    """Behind a prune an export begins with what is left."""
    store.prune(20, max_groups=100)
    first = store.base().sequence + 1

    assert next(iter(decisions(store, Span()))).sequence == first > 5


def test_json_lines(store, tmp_path):
    """A line of JSON is the decision in the words of the API."""
    path = tmp_path / "log.jsonl"
    count = write_json(path, decisions(store, Span()), plain)
    lines = [json.loads(line) for line in path.read_text().splitlines()]

    assert count == len(lines) == store.head().sequence
    for line, message in zip(lines, decisions(store, Span()), strict=True):
        assert line == plain(message)
        assert line["kind"].startswith("DECISION_KIND_")
    assert not list(tmp_path.glob("*.part"))


def test_parquet(store, tmp_path):
    """A table has a row a decision and a column a field; values and absences come back."""
    path = tmp_path / "log.parquet"
    count = write_parquet(path, decisions(store, Span()))
    rows = pq.read_table(path).to_pylist()

    assert count == len(rows) == store.head().sequence
    for row, message in zip(rows, decisions(store, Span()), strict=True):
        expected = row_of(message)
        for name, value in row.items():
            if name == "time":
                assert int(value.timestamp() * 1e6 + 0.5) == expected["time"]
            else:
                assert value == expected.get(name), name
    by_kind = {row["kind"]: row for row in rows}
    assert by_kind["accepted"]["user_id"].startswith("ü")
    assert by_kind["dispatched"]["turn"].startswith("TURN_")
    assert by_kind["completed"]["charge_micros"] is None
    assert rows[0]["policy"].startswith("{")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_simulator_reads_exports(store, tmp_path, suffix):
    """What was exported can be run again under another policy: every request is there."""
    path = tmp_path / f"log{suffix}"
    if suffix == ".jsonl":
        write_json(path, decisions(store, Span()), plain)
    else:
        write_parquet(path, decisions(store, Span()))
    rows = read_any(path)

    assert len(rows) == 30
    assert {row.user for row in rows} == {"ü0", "ü1", "ü2"}


def test_a_failed_export_leaves_nothing(tmp_path):
    """An export that fails in the middle leaves no file behind."""

    def broken():
        yield pb.Decision(sequence=1, log_opened=pb.LogOpened())
        raise OSError

    for write, name in (
        (lambda path: write_json(path, broken(), plain), "x.jsonl"),
        (lambda path: write_parquet(path, broken()), "x.parquet"),
    ):
        with pytest.raises(OSError):  # noqa: PT011 - whichever it is
            write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
