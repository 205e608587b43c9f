"""The engine when the core or a listener fails."""

import asyncio
import contextlib

import pytest

from scheduler_service.app import commit as commit_module
from scheduler_service.app import engine as engine_module
from scheduler_service.app.clock import ManualClock
from scheduler_service.app.engine import Engine
from scheduler_service.app.memory import MemoryStore
from scheduler_service.app.ports import Payload
from scheduler_service.core import COMPILED, scheduler
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import NotReady, SchedulerError
from scheduler_service.core.policy import SECOND_NS, PoolPolicy
from scheduler_service.core.state import State


def _create(now_ns: int) -> c.ConfigurePool:
    return c.ConfigurePool(
        now_ns=now_ns, pool="p", policy=PoolPolicy(), policy_digest="", create=True
    )


@pytest.fixture
async def engine():
    """A running engine over a store in memory."""
    store = MemoryStore()
    engine = Engine(State(), ManualClock(), store, lambda event, **values: None)
    engine.start()
    yield engine
    await engine.close()


@pytest.mark.parametrize("kind", [AssertionError, KeyError, ZeroDivisionError])
async def test_a_command_that_fails_in_the_middle_never_reaches_the_log(engine, monkeypatch, kind):
    """Whatever breaks inside the core ends the service before anything of it is recorded."""

    def broken(state, command, log):
        log.append(d.LogOpened(1, 1, "none", ""))
        raise kind

    monkeypatch.setitem(scheduler._HANDLERS, c.ConfigurePool, broken)
    with pytest.raises(kind):
        engine.apply(_create(1))

    assert engine.stopped.is_set()
    assert engine.log.sequence == 0
    with pytest.raises(NotReady, match="failed"):
        engine.apply(_create(2))
    with pytest.raises(NotReady, match="failed"):
        await engine.durable()


async def test_callers_that_wait_are_told_that_it_failed(engine, monkeypatch):
    """A call that waits for its commit gets an answer when another command breaks the core."""
    engine.apply(_create(1))
    waiting = asyncio.ensure_future(engine.durable())
    await asyncio.sleep(0)
    monkeypatch.setitem(scheduler._HANDLERS, c.ConfigurePool, lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.apply(_create(2))

    with pytest.raises(NotReady, match="failed"):
        await waiting


async def test_a_future_is_settled_when_everything_decided_so_far_is_durable(engine):
    """Not before its commit, not by a later one, and at once when there is nothing to wait for."""
    loop = asyncio.get_running_loop()
    durable = []
    engine.publishers.append(lambda group: durable.append(group.end.sequence))
    at_once, own, cancelled = (loop.create_future() for _ in range(3))
    engine.wake_when_durable(at_once)
    assert at_once.done()
    engine.apply(_create(1))
    engine.wake_when_durable(cancelled)
    engine.wake_when_durable(own)
    cancelled.cancel()
    assert not own.done()
    await own

    assert durable == [engine.log.sequence]


async def test_a_future_is_settled_with_the_failure_of_the_log(engine, monkeypatch):
    """Whether it was waiting when the engine stopped or came later."""
    loop = asyncio.get_running_loop()
    waiting, late = loop.create_future(), loop.create_future()
    engine.apply(_create(1))
    engine.wake_when_durable(waiting)
    monkeypatch.setattr(engine_module, "apply", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine.apply(_create(2))
    engine.wake_when_durable(late)

    for future in (waiting, late):
        with pytest.raises(NotReady, match="failed"):
            future.result()


@pytest.mark.skipif(COMPILED, reason="compiled, limits are no variables")
async def test_what_one_command_decides_is_recorded_in_bounded_groups(engine, monkeypatch):
    """However much falls due at once, groups stay bounded, and a payload stays with its request."""
    monkeypatch.setattr(engine_module, "MAX_GROUP_RECORDS", 4)
    monkeypatch.setattr(commit_module, "MAX_GROUP_RECORDS", 4)
    groups = []
    engine.publishers.append(groups.append)
    engine.apply(_create(0))
    for number in range(20):
        engine.apply(_enqueue(0, f"r{number}", max_wait_ns=SECOND_NS))
    await engine.durable()
    groups.clear()
    now_ns = engine.clock.advance(SECOND_NS)
    engine.apply(_enqueue(now_ns, "last"), Payload(b"body", b""))
    await engine.durable()

    assert sum(len(group.records) for group in groups) > 20
    assert max(len(group.records) for group in groups) <= 7
    (holder,) = (group for group in groups if group.puts)
    (key,) = (key for key, _ in holder.puts)
    assert key == engine.state.pools["p"].requests["last"].sequence
    assert holder.first_sequence <= key <= holder.end.sequence


async def test_what_is_gathered_is_taken_in_one_go(engine):
    """In order, each with its payload; a refusal spoils no other, and the state is up to date."""
    told, seen = [], []
    engine.apply(_create(0))
    engine.listeners.append(lambda before, decisions: told.append((before, len(decisions))))

    def work():
        for number in range(4):
            engine.apply(_enqueue(0, f"r{number}"), Payload(f"body {number}".encode(), b""))
            with contextlib.suppress(SchedulerError):
                engine.apply(c.Cancel(now_ns=0, pool="p", request_id="unknown", reason="x"))
            seen.append((engine.state.pools["p"].waiting, engine.log.sequence, len(told)))

    engine.gather(work)
    requests = engine.state.pools["p"].requests.values()
    payloads = [await engine.fetch(request.sequence) for request in requests]

    assert seen == [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 0)]
    assert told == [(1, 4)]
    assert [x.payload for x in payloads] == [b"body 0", b"body 1", b"body 2", b"body 3"]
    assert engine.log.sequence == engine.state.sequence == 5


async def test_large_payloads_that_are_gathered_are_kept_in_bounded_groups(engine):
    """A message of many does not become one transaction of its size."""
    groups = []
    engine.publishers.append(groups.append)
    engine.apply(_create(0))
    body = bytes(commit_module.MAX_GROUP_BYTES // 4)

    def work():
        for number in range(30):
            engine.apply(_enqueue(0, f"r{number}"), Payload(body, b""))

    engine.gather(work)
    await engine.durable()

    sizes = [sum(len(payload.payload) for _, payload in group.puts) for group in groups]
    assert sum(sizes) == 30 * len(body)
    assert max(sizes) <= commit_module.MAX_GROUP_BYTES + len(body)
    keys = [key for group in groups for key, _ in group.puts]
    assert keys == [x.sequence for x in engine.state.pools["p"].requests.values()]


async def test_what_was_decided_is_taken_whatever_else_fails_in_between(engine):
    """An error that is none of the core's reaches the caller; the engine goes on."""
    engine.apply(_create(0))

    def work():
        engine.apply(_enqueue(0, "a"))
        raise ValueError("not the core's")

    with pytest.raises(ValueError, match="core"):
        engine.gather(work)
    engine.apply(_enqueue(0, "b"))

    assert engine.log.sequence == engine.state.sequence == 3
    assert not engine.stopped.is_set()


async def test_a_core_that_breaks_while_gathering_stops_the_engine(engine, monkeypatch):
    """Nothing of what was gathered reaches the log, since nobody was told about it."""
    engine.apply(_create(0))
    monkeypatch.setitem(scheduler._HANDLERS, c.Cancel, lambda *_: 1 / 0)

    def work():
        engine.apply(_enqueue(0, "a"))
        engine.apply(c.Cancel(now_ns=0, pool="p", request_id="a", reason="x"))

    with pytest.raises(ZeroDivisionError):
        engine.gather(work)

    assert engine.stopped.is_set()
    assert engine.log.sequence == 1


def _enqueue(now_ns: int, request_id: str, max_wait_ns: int = 0) -> c.Enqueue:
    return c.Enqueue(
        now_ns=now_ns,
        pool="p",
        request_id=request_id,
        user_id="u",
        cost=1,
        max_wait_ns=max_wait_ns,
    )
