"""AdminService: lists, statistics and dumps, over real gRPC."""

import asyncio
import time

import pytest

from fairsched.v1 import admin_service_pb2 as pb
from fairsched.v1 import decision_pb2
from scheduler_service.core import commands as c
from scheduler_service.core import snapshot
from tests.support.live import FAILED, GIVEN_BACK, POOL, create_pool, refused, running

STATES = decision_pb2.RequestState


async def _pages(call, kind, field, **fields):
    """Returns all entries of a list, page by page, and the number of pages."""
    found, pages, token = [], 0, ""
    while True:
        page = await call(kind(page_token=token, **fields))
        entries = getattr(page, field)
        found += entries
        pages += 1
        token = page.next_page_token
        if not token:
            return found, pages


# -- lists --------------------------------------------------------------------------------------


async def test_requests_by_state_and_user(service):
    """Requests are listed by accept sequence: those alive, or those in the states asked for."""
    for number in range(12):
        await service.enqueue(f"r{number}", f"u{number % 2}")
    leases = (await service.next(max_dispatches=6)).dispatches
    await service.complete(leases[0].lease_id)
    await service.complete(leases[1].lease_id, FAILED)
    await service.complete(leases[2].lease_id, GIVEN_BACK)

    async def listed(**fields):
        found, _ = await _pages(
            service.admin.ListRequests,
            pb.ListRequestsRequest,
            "requests",
            pool=POOL,
            page_size=2,
            **fields,
        )
        assert [r.sequence for r in found] == sorted(r.sequence for r in found)
        return {r.request_id for r in found}

    everything = {f"r{number}" for number in range(12)}
    over = {leases[0].request_id, leases[1].request_id}
    given = {leases[2].request_id}
    assert await listed() == everything - over
    assert await listed(states=[STATES.REQUEST_STATE_SUCCEEDED]) == {leases[0].request_id}
    assert await listed(states=[STATES.REQUEST_STATE_REDELIVERY]) == given
    assert await listed(states=list(STATES.values())[1:]) == everything
    assert await listed(user_id="u1") == {f"r{n}" for n in range(1, 12, 2)} - over
    assert await listed(user_id="nobody") == set()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_hundred_thousand_users(service):
    """A hundred thousand users are listed in small pages, each of them once, while calls go on."""
    count, engine = 100_000, service.engine
    for start in range(0, count, 2000):
        for number in range(start, start + 2000):
            engine.apply(
                c.Enqueue(
                    now_ns=engine.now_ns(),
                    pool=POOL,
                    request_id=f"r{number}",
                    user_id=f"user-{number * 7919 % count:06}",
                    cost=1,
                )
            )
        await engine.durable()
    slowest = 0.0

    async def call_meanwhile():
        nonlocal slowest
        while True:
            began = time.monotonic()
            await service.enqueue(user_id="other")
            slowest = max(slowest, time.monotonic() - began)

    meanwhile = asyncio.ensure_future(call_meanwhile())
    users, pages = await _pages(
        service.admin.ListUsers, pb.ListUsersRequest, "users", pool=POOL, page_size=1000
    )
    requests, _ = await _pages(
        service.admin.ListRequests, pb.ListRequestsRequest, "requests", pool=POOL, page_size=1000
    )
    dumped, _ = await _pages(
        service.admin.DumpState, pb.DumpStateRequest, "users", pool=POOL, page_size=1000
    )
    meanwhile.cancel()
    page = await service.admin.ListUsers(pb.ListUsersRequest(pool=POOL, page_size=1000))
    content = (await service.service._telemetry.metrics.page())[1]

    ids = [u.user_id for u in users]
    assert pages >= 100
    assert [i for i in ids if i != "other"] == [f"user-{n:06}" for n in range(count)]
    assert {u.user_id for u in dumped} >= set(ids)
    assert len({r.request_id for r in requests}) >= count
    assert page.ByteSize() < 1 << 20
    assert slowest < 2.0
    assert len(content) < 100_000


async def test_a_page_token_belongs_to_its_list(service):
    """A token of another list, or none at all, is refused by name."""
    for number in range(3):
        await service.enqueue(f"r{number}", f"u{number}")
    page = await service.admin.ListUsers(pb.ListUsersRequest(pool=POOL, page_size=1))
    await create_pool(service, "q")
    for call, request in (
        (service.admin.ListUsers, pb.ListUsersRequest(pool="q", page_token=page.next_page_token)),
        (service.admin.ListPools, pb.ListPoolsRequest(page_token=page.next_page_token)),
        (service.admin.GetStats, pb.GetStatsRequest(page_token="x")),
        (service.admin.DumpState, pb.DumpStateRequest(pool=POOL, page_token="x")),
    ):
        refusal = await refused(call(request))
        assert list(refusal.fields) == ["page_token"]


# -- statistics and dumps -----------------------------------------------------------------------


async def test_statistics(service):
    """Counts add up, and the gap stays within its bound."""
    for number in range(20):
        await service.enqueue(f"r{number}", f"u{number % 4}", cost=1 + number)
    leases = (await service.next(max_dispatches=8)).dispatches
    for lease in leases[:3]:
        await service.complete(lease.lease_id)
    await refused(service.enqueue("r0", cost=99))
    answer = await service.admin.GetStats(pb.GetStatsRequest())
    (pool,) = answer.pools

    assert (pool.waiting_count, pool.leased_count, pool.remembered_count) == (12, 5, 3)
    assert pool.counters.accepted_count == 20
    assert pool.counters.dispatched_count == 8
    assert {(s.state, s.count) for s in pool.counters.ended} == {
        (STATES.REQUEST_STATE_SUCCEEDED, 3)
    }
    assert {(r.reason, r.count) for r in pool.counters.rejected} == {("REQUEST_ID_REUSED", 1)}
    assert pool.in_flight_cost == sum(lease.cost for lease in leases[3:])
    assert 0 < pool.fairness_gap_micros <= pool.fairness_bound_micros
    assert answer.service.log.newest_sequence == service.engine.state.sequence
    assert answer.service.durability == "sync"
    assert answer.service.invariant_violation_count == 0


async def test_metrics_equal_statistics(tmp_path):
    """At any moment /metrics and GetStats show the same numbers."""
    async with running(tmp_path / "data", http_listen="127.0.0.1:0") as live:
        page = live.service._telemetry.metrics.page
        for round_ in range(5):
            for number in range(10):
                await live.enqueue(f"r{round_}-{number}", f"u{number % 3}", cost=1 + number)
            for dispatch in (await live.next(max_dispatches=7)).dispatches:
                await live.complete(dispatch.lease_id)
            stats = (await live.admin.GetStats(pb.GetStatsRequest())).pools[0]
            text = (await page())[1].decode()
            shown = dict(
                line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
            )
            for name, value in (
                ("fairsched_waiting_requests", stats.waiting_count),
                ("fairsched_leases", stats.leased_count),
                ("fairsched_users", stats.user_count),
                ("fairsched_backlogged_users", stats.selectable_user_count),
                ("fairsched_remembered_requests", stats.remembered_count),
                ("fairsched_enqueues_total", stats.counters.accepted_count),
                ("fairsched_charge_cost_units_total", stats.counters.charged_cost),
                ("fairsched_virtual_time_cost_units", stats.virtual_time_micros / 1e6),
                ("fairsched_fairness_gap_cost_units", stats.fairness_gap_micros / 1e6),
                ("fairsched_fairness_bound_cost_units", stats.fairness_bound_micros / 1e6),
            ):
                assert float(shown[f'{name}{{pool="default"}}']) == value, name
            succeeded = shown['fairsched_ends_total{pool="default",state="succeeded"}']
            assert float(succeeded) == stats.counters.ended[0].count


async def test_a_dump_is_the_fold_of_the_log(service):
    """A dump's digest is that of the state at its sequence, as anybody can fold it from the log."""
    for number in range(10):
        await service.enqueue(f"r{number}", f"u{number % 3}")
    await service.next(max_dispatches=3)
    levels = {
        level: await service.admin.DumpState(
            pb.DumpStateRequest(pool=POOL, level=level, page_size=4)
        )
        for level in (pb.DUMP_LEVEL_POOL, pb.DUMP_LEVEL_USER, pb.DUMP_LEVEL_REQUEST)
    }
    rest = await service.admin.DumpState(
        pb.DumpStateRequest(
            pool=POOL,
            level=pb.DUMP_LEVEL_REQUEST,
            page_size=4,
            page_token=levels[pb.DUMP_LEVEL_REQUEST].next_page_token,
        )
    )

    for dump in levels.values():
        assert dump.sequence == service.engine.state.sequence
        assert dump.state_digest == snapshot.digest(service.engine.state)
        assert dump.pool.waiting_count == 7
    assert len(levels[pb.DUMP_LEVEL_USER].users) == 3
    assert [r.request_id for r in levels[pb.DUMP_LEVEL_REQUEST].requests] == [
        f"r{number}" for number in range(4)
    ]
    assert [r.request_id for r in rest.requests] == [f"r{number}" for number in range(4, 8)]
    assert rest.state_digest == ""
    assert not levels[pb.DUMP_LEVEL_POOL].users
