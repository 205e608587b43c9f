"""Log lines: one JSON object a line, off the caller's path, and never a reason to stop."""

import ast
import io
import json
import logging
import re
import threading
from pathlib import Path

import pytest

from scheduler_service.obs import logging as obs_logging
from scheduler_service.obs.events import EVENTS
from scheduler_service.obs.logging import Log
from tests.support.source import tree_of

SERVICE = Path(__file__).parents[3] / "scheduler_service"


class Stuck(io.BytesIO):
    """A stream whose reader takes nothing until it is released."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()

    def write(self, data):
        self.release.wait(10)
        return super().write(data)


class Broken(io.RawIOBase):
    """A stream whose reader has gone."""

    def write(self, _data):
        raise BrokenPipeError

    def flush(self):
        pass


def _lines(stream: io.BytesIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_object_a_line():
    """An event is one line of JSON with time, level and name first, whatever its values hold."""
    stream = io.BytesIO()
    log = Log(stream)
    log.report("log.tail_cut", file="x\ny", sequence=7, raw=b"\xff", odd=object(), pools=["a"])
    log.close()
    (line,) = _lines(stream)

    assert stream.getvalue().count(b"\n") == 1
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["level"], line["event"], line["sequence"]) == ("warning", "log.tail_cut", 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])


@pytest.mark.parametrize(
    ("level", "written"),
    [("debug", 3), ("info", 3), ("warning", 2), ("error", 1)],
)
def test_levels(level, written):
    """Only events of the level or above are written; the level may change while it runs."""
    stream = io.BytesIO()
    log = Log(stream, level="error")
    log.set_level(level)
    for event in ("snapshot.made", "log.tail_cut", "rpc.failed"):
        log.report(event)
    log.close()

    assert len(_lines(stream)) == written


def test_user_ids_are_masked():
    """With masking, values that are user ids cannot be read, and the same id looks the same."""
    stream = io.BytesIO()
    log = Log(stream, mask_user_ids=True)
    for user in ("alice", "alice", "bob"):
        log.report("health.degraded", user_id=user, pool="alice")
    log.close()
    lines = _lines(stream)

    assert b'"user_id":"alice"' not in stream.getvalue()
    assert lines[0]["user_id"] == lines[1]["user_id"] != lines[2]["user_id"]
    assert lines[0]["user_id"] == log.mask("alice")
    assert lines[0]["pool"] == "alice"


def test_a_stuck_reader_holds_nobody_up(monkeypatch):
    """When nobody takes the lines, they are dropped and counted, and the log says so later."""
    monkeypatch.setattr(obs_logging, "QUEUE_MAX", 10)
    stream = Stuck()
    log = Log(stream)
    for number in range(100):
        log.report("snapshot.made", number=number)
    dropped = log.dropped
    stream.release.set()
    log.close()
    lines = _lines(stream)

    assert 85 <= dropped <= 90
    assert len([line for line in lines if line["event"] == "snapshot.made"]) == 100 - dropped
    assert {"count": dropped} == {
        "count": sum(line["count"] for line in lines if line["event"] == "lines.dropped")
    }


@pytest.mark.parametrize("bad", [{"event": 1}, {"level": 1}, {"wall_ns": 1}])
def test_values_that_cannot_be_written(bad):
    """A line that cannot be written is lost, not the log."""
    stream = io.BytesIO()
    log = Log(stream)
    log.report("snapshot.made", **bad)
    log.report("snapshot.made", sequence=2)
    log.close()

    written = [line for line in _lines(stream) if line["event"] == "snapshot.made"]
    assert [line["sequence"] for line in written] == [2]
    assert log.dropped == 1


def test_a_gone_reader_does_not_end_the_service():
    """A broken pipe costs lines and nothing else."""
    log = Log(Broken())
    log.report("snapshot.made")
    log.report("snapshot.made")
    log.close()

    assert log.dropped == 2


def test_libraries_are_heard():
    """What a library logs becomes an event, with the error and without a traceback."""
    stream = io.BytesIO()
    log = Log(stream)
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        log.capture_libraries()
        logging.getLogger("asyncio").warning("slow %s", "x")
        logging.getLogger("grpc").error("boom", exc_info=ValueError("bad\nvalue"))
        logging.getLogger("grpc").info("not heard")
    finally:
        root.handlers[:], root.level = before[0], before[1]
        log.close()

    assert [(x["event"], x["logger"], x["message"]) for x in _lines(stream)] == [
        ("library.logged", "asyncio", "slow x"),
        ("library.failed", "grpc", "boom"),
    ]
    assert _lines(stream)[1]["error"] == "ValueError('bad\\nvalue')"
    assert stream.getvalue().count(b"\n") == 2


def test_console():
    """For a person the same event is a readable line."""
    stream = io.BytesIO()
    log = Log(stream, console=True)
    log.report("log.tail_cut", file="log.db")
    log.close()

    assert b"log.tail_cut" in stream.getvalue()
    assert b"file=log.db" in stream.getvalue()


def _events_in_code() -> set[str]:
    """Returns every name the service reports, read from its source."""
    found = set()
    for path in SERVICE.rglob("*.py"):
        if path.is_relative_to(SERVICE / "demo"):
            continue
        for node in ast.walk(tree_of(path)):
            names: list[ast.AST] = []
            if isinstance(node, ast.Call) and re.search(r"report$", ast.unparse(node.func)):
                names = node.args[:1]
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "event":
                names = [node.value]
            found |= {
                part.value
                for name in names
                for part in ast.walk(name)
                if isinstance(part, ast.Constant)
                and isinstance(part.value, str)
                and re.fullmatch(r"[a-z0-9]+(\.[a-z0-9_]+)+", part.value)
            }
    return found | {"lines.dropped"}


def test_every_event_is_in_the_table():
    """The table of events holds every event the service reports, and its names have the form."""
    assert _events_in_code() == set(EVENTS)
    assert all(re.fullmatch(r"[a-z]+\.[a-z0-9_]+", name) for name in EVENTS)
    assert {event.level for event in EVENTS.values()} <= {"info", "warning", "error"}
