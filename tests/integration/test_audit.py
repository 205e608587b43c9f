"""AuditService: pages and streams of the decision log, over real gRPC."""

import asyncio
from hashlib import sha256

import grpc
import pytest
import pytest_asyncio

from fairsched.v1 import audit_service_pb2 as pb
from fairsched.v1 import audit_service_pb2_grpc, decision_pb2
from scheduler_service.app.memory import MemoryStore
from scheduler_service.rpc import audit_servicer
from tests.support.decided import list_all, pause_often
from tests.support.live import refusal_of, refused, running

ACCEPTED = decision_pb2.DECISION_KIND_ACCEPTED
DISPATCHED = decision_pb2.DECISION_KIND_DISPATCHED
LEASE_ENDED = decision_pb2.DECISION_KIND_LEASE_ENDED
COMPLETED = decision_pb2.DECISION_KIND_COMPLETED


async def _watch(live, until, **fields):
    """Watches until the sequence `until` was looked at; returns the decisions."""
    call = live.audit.WatchDecisions(pb.WatchDecisionsRequest(**fields))
    found = []
    async for message in call:
        found += message.decisions
        if message.scanned_sequence >= until:
            call.cancel()
            return found
    raise AssertionError("the stream ended")


# -- pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [0, 1, 7, 1000])
async def test_pages_hold_every_decision_once(worked, page_size):
    """Whatever the page size, the pages together are the log, dense and in order."""
    live = await worked()
    found = await list_all(live, page_size=page_size)

    assert [x.sequence for x in found] == list(range(1, live.engine.state.sequence + 1))


async def test_a_reader_can_check_the_chain_itself(worked):
    """With the stored records a reader computes every hash, up to the head it was told."""
    live = await worked()
    found = await list_all(live, include_records=True)
    head = (await live.audit.ListDecisions(pb.ListDecisionsRequest(page_size=1))).head

    chain_hash = bytes(32)
    for decision in found:
        assert decision.previous_hash == chain_hash
        chain_hash = sha256(chain_hash + decision.record).digest()
        assert decision.hash == chain_hash
    assert (head.newest_hash, head.newest_sequence) == (chain_hash, found[-1].sequence)
    assert head.oldest_sequence == 1


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"kinds": [DISPATCHED]}, lambda x: x.kind == DISPATCHED),
        ({"user_ids": ["u1"]}, lambda x: x.user_id == "u1"),
        ({"user_ids": ["u1"], "kinds": [COMPLETED, ACCEPTED]}, None),
        ({"request_ids": ["r3", "r4"]}, lambda x: x.request_id in {"r3", "r4"}),
        ({"pools": ["nowhere"]}, lambda x: False),
    ],
    ids=["kind", "user", "user and kinds", "requests", "pool"],
)
async def test_filters(worked, filters, wanted):
    """A filter leaves exactly the decisions that match all of it."""
    live = await worked()
    whole = await list_all(live)
    if wanted is None:

        def wanted(x):
            return x.user_id == "u1" and x.kind in {COMPLETED, ACCEPTED}

    found = await list_all(live, filter=pb.DecisionFilter(**filters), page_size=3)

    assert found == [x for x in whole if wanted(x)]
    assert bool(found) != (filters == {"pools": ["nowhere"]})


async def test_a_span_of_time(worked):
    """A start and an end leave what was decided between them."""
    live = await worked()
    whole = await list_all(live)
    start, end = whole[10].time, whole[30].time
    filters = pb.DecisionFilter(start_time=start, end_time=end)

    found = await list_all(live, filter=filters, page_size=4)

    times = [x.time.ToNanoseconds() for x in whole]
    low, high = start.ToNanoseconds(), end.ToNanoseconds()
    assert found == [x for x, t in zip(whole, times, strict=True) if low <= t < high]
    assert len(found) > 5


async def test_bad_fields_are_all_named(service):
    """Every bad field of a list call is named at once."""
    request = pb.ListDecisionsRequest(
        after_sequence=-1,
        page_size=5000,
        page_token="junk",
        filter=pb.DecisionFilter(kinds=[999], user_ids=["a\n"]),
    )
    refusal = await refused(service.audit.ListDecisions(request))

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert set(refusal.fields) == {
        "after_sequence",
        "page_size",
        "page_token",
        "filter.kinds[0]",
        "filter.user_ids[0]",
    }


async def test_a_shorter_log_is_noticed(service):
    """A reader that has seen more than there is learns that this is not the log it knew."""
    refusals = [
        await refused(service.audit.ListDecisions(pb.ListDecisionsRequest(after_sequence=10**6))),
        await refused(
            service.audit.WatchDecisions(pb.WatchDecisionsRequest(after_sequence=10**6)).read()
        ),
    ]

    assert {r.code for r in refusals} == {grpc.StatusCode.NOT_FOUND}
    assert {r.reason for r in refusals} == {"SEQUENCE_UNKNOWN"}


# -- streams ------------------------------------------------------------------------------------


async def test_a_watch_follows(worked):
    """A watch gets what was decided before and, as it happens, what is decided after."""
    live = await worked()
    before = live.engine.state.sequence
    watching = asyncio.ensure_future(_watch(live, before + 5, after_sequence=0))
    for number in range(5):
        await live.enqueue(f"late{number}")
    found = await asyncio.wait_for(watching, 10)

    assert [x.sequence for x in found][: before + 5] == list(range(1, before + 6))
    assert found == (await list_all(live))[: len(found)]


async def test_a_watch_begins_with_the_next_decision(service):
    """Without a sequence a watch begins with what is decided next."""
    await service.enqueue("before")
    call = service.audit.WatchDecisions(pb.WatchDecisionsRequest())
    await service.until(lambda: service.service.runtime.seen.watchers == 1)
    await service.enqueue("after")
    message = await asyncio.wait_for(call.read(), 10)
    call.cancel()

    assert [x.request_id for x in message.decisions] == ["after"]


async def test_heartbeats(service, monkeypatch):
    """A watch that has nothing to tell says how far it looked and where the log ends."""
    monkeypatch.setattr(audit_servicer, "HEARTBEAT_NS", 20_000_000)
    wanted = pb.DecisionFilter(user_ids=["nobody"])
    call = service.audit.WatchDecisions(pb.WatchDecisionsRequest(after_sequence=0, filter=wanted))
    await service.enqueue("r")
    end = service.engine.state.sequence
    beats = []
    async for message in call:
        beats.append(message)
        if message.scanned_sequence == end:
            break
    call.cancel()

    assert all(not beat.decisions for beat in beats)
    assert beats[-1].head.newest_sequence == end
    assert beats[-1].head.newest_hash == service.engine.log.durable.chain_hash


async def test_resuming_after_a_restart_leaves_no_gap(tmp_path):
    """A watch that resumes on a restarted service gets the very next decision, chain unbroken."""
    async with running(tmp_path / "data") as live:
        for number in range(20):
            await live.enqueue(f"r{number}")
        seen = await _watch(live, 12, after_sequence=0)
    async with running(tmp_path / "data") as live:
        await live.enqueue("later")
        end = live.engine.state.sequence
        rest = await _watch(live, end, after_sequence=seen[-1].sequence)
        whole = await list_all(live)

    assert seen + rest == whole
    assert rest[0].previous_hash == seen[-1].hash
    assert decision_pb2.DECISION_KIND_RECOVERED in {x.kind for x in rest}


async def test_pruned_while_away(tmp_path):
    """What was pruned is said to be gone: a page and a watch are refused rather than skip it."""
    stores = []

    def open_store(directory, _settings, _report):
        directory.create()
        stores.append(MemoryStore())
        return stores[0]

    async with running(tmp_path / "data", open_store=open_store) as live:
        for number in range(30):
            await live.enqueue(f"r{number}")
        stores[0].prune(20, max_groups=1000)
        oldest = stores[0].base().sequence + 1
        refusals = [
            await refused(live.audit.ListDecisions(pb.ListDecisionsRequest(after_sequence=3))),
            await refused(
                live.audit.WatchDecisions(pb.WatchDecisionsRequest(after_sequence=3)).read()
            ),
            await refused(live.audit.ExplainDecision(pb.ExplainDecisionRequest(sequence=3))),
        ]
        rest = await list_all(live, after_sequence=oldest - 1)

    assert {r.code for r in refusals} == {grpc.StatusCode.OUT_OF_RANGE}
    assert {r.metadata["firstSequence"] for r in refusals} == {str(oldest)}
    assert rest[0].sequence == oldest > 10


async def test_too_many_watches(service):
    """Watches are limited, and a place that is given up can be taken again."""
    seen = service.service.runtime.seen
    seen.watchers_max = 2
    calls = [service.audit.WatchDecisions(pb.WatchDecisionsRequest()) for _ in range(2)]
    await service.until(lambda: seen.watchers == 2)
    refusal = await refused(service.audit.WatchDecisions(pb.WatchDecisionsRequest()).read())
    for call in calls:
        call.cancel()
    await service.until(lambda: seen.watchers == 0)

    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "WATCHERS_FULL"
    assert service.app.slots.streams == 0


@pytest_asyncio.fixture(loop_scope="session")
async def narrow(service):
    """A second client whose stream takes in little at a time."""
    options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536)]
    address = f"127.0.0.1:{service.port}"
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield audit_service_pb2_grpc.AuditServiceStub(channel)


async def _read_until_cut(call, received):
    """Takes what is left of a stream and returns how it was cut."""
    try:
        while True:
            received += (await call.read()).decisions
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)


async def test_a_watcher_that_takes_nothing_is_cut_and_resumes(service, narrow, monkeypatch):
    """A watcher that stops reading is cut with a status, and goes on without a gap."""
    monkeypatch.setattr(audit_servicer, "WRITE_SECONDS", 0.2)
    for _ in range(20):
        pause_often(service.engine, "u" * 250, 200)
        await service.engine.durable()
    call = narrow.WatchDecisions(pb.WatchDecisionsRequest(after_sequence=0))
    first = await call.read()
    await service.until(lambda: service.service.runtime.seen.watchers == 0, 20)
    received = list(first.decisions)
    cut = await _read_until_cut(call, received)
    end = service.engine.state.sequence
    rest = await _watch(service, end, after_sequence=received[-1].sequence)

    assert cut.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert cut.reason == "WATCHER_TOO_SLOW"
    assert len(received) < 8000
    assert [x.sequence for x in received + rest] == list(range(1, end + 1))


async def test_stopping_ends_watches_with_a_status(tmp_path):
    """A service that stops ends its watches at once, and says that it stops."""
    async with running(tmp_path / "data") as live:
        calls = [live.audit.WatchDecisions(pb.WatchDecisionsRequest()) for _ in range(5)]
        await live.until(lambda: live.service.runtime.seen.watchers == 5)
        waiting = [asyncio.ensure_future(refused(call.read())) for call in calls]
        await asyncio.sleep(0.05)
        await asyncio.wait_for(live.service.stop(), 1.5)
        refusals = await asyncio.wait_for(asyncio.gather(*waiting), 5)

    assert {r.code for r in refusals} == {grpc.StatusCode.UNAVAILABLE}
    assert {r.reason for r in refusals} == {"DRAINING"}
    assert not [event for event, _ in live.events if event in {"rpc.failed", "task.failed"}]
