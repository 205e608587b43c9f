"""Parked calls: whoever can take what came is found, and nobody else waits for the search."""

import asyncio

import pytest

from scheduler_service.app import payload_keys, waiters
from scheduler_service.app.application import Application
from scheduler_service.app.limits import Limits
from scheduler_service.app.readiness import Readiness
from scheduler_service.app.waiters import Parked
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import PRESETS

SMALL = d.Offer(free_tokens=10, total_tokens=10)
LARGE = d.Offer(free_tokens=1000, total_tokens=1000)
COUNT = 300


class Crowd:
    """Workers whose calls are parked, in this order."""

    def __init__(self, rig, offers) -> None:
        self.app = Application.around(rig.engine, Limits(), Readiness())
        self.asked: list[int] = []
        self.served: list[tuple[int, a.Dispatches]] = []
        self._rig = rig
        for number, offer in enumerate(offers):
            rig.engine.apply(self._command(number, offer))
            self.park(number, offer)
        self.asked.clear()

    def park(self, number, offer) -> None:
        self.app.waiters.park(
            Parked(
                f"w{number}",
                ("p",),
                offer,
                lambda: self._command(number, offer),
                lambda answer: self.served.append((number, answer)),
                pytest.fail,
            )
        )

    def _command(self, number, offer) -> c.NextDispatch:
        self.asked.append(number)
        now_ns = self._rig.clock.advance(1)
        return c.NextDispatch(
            now_ns=now_ns, nonce=f"n{number}", pools=("p",), worker=f"w{number}", offer=offer
        )

    async def until_asked(self) -> None:
        """Waits until the search has begun."""
        for _ in range(100):
            await asyncio.sleep(0)
            if self.asked:
                return
        pytest.fail("nobody was asked")

    async def until_served(self, count) -> int:
        """Waits until so many were served; returns the most that were asked for in one turn."""
        most = 0
        for _ in range(100):
            before = len(self.asked)
            await asyncio.sleep(0)
            most = max(most, len(self.asked) - before)
            if len(self.served) >= count:
                return most
        pytest.fail("nobody was served")


def enqueue(rig, request_id, kv_tokens) -> None:
    rig.do(
        c.Enqueue, pool="p", request_id=request_id, user_id=request_id, cost=1, kv_tokens=kv_tokens
    )


async def test_the_only_one_that_fits_is_found_behind_many(rig):
    """Hundreds that can take nothing hold neither it up, nor anybody else for a whole turn."""
    rig.create_pool(policy=PRESETS["sfq"])
    crowd = Crowd(rig, [SMALL] * COUNT + [LARGE])
    enqueue(rig, "big", 500)
    most = await crowd.until_served(1)

    ((number, answer),) = crowd.served
    assert number == COUNT
    assert [request.request_id for request in answer.granted] == ["big"]
    assert most < COUNT // 3
    assert crowd.asked == list(range(COUNT + 1))


async def test_what_comes_while_it_is_looked_for_another_is_not_missed(rig):
    """The calls that were asked for before it came are asked for once more."""
    rig.create_pool(policy=PRESETS["sfq"])
    crowd = Crowd(rig, [SMALL] * COUNT + [LARGE])
    enqueue(rig, "big", 500)
    await crowd.until_asked()
    assert 0 < len(crowd.asked) < COUNT
    enqueue(rig, "small", 5)
    await crowd.until_served(2)

    taken = {answer.granted[0].request_id: number for number, answer in crowd.served}
    assert taken["big"] == COUNT
    assert taken["small"] < COUNT
    assert crowd.app.waiters.count == COUNT - 1


async def test_a_call_that_leaves_during_the_search_is_not_asked_for(rig):
    """It is not there any more when its place comes up."""
    rig.create_pool(policy=PRESETS["sfq"])
    crowd = Crowd(rig, [SMALL] * COUNT + [LARGE])
    enqueue(rig, "big", 500)
    await crowd.until_asked()
    crowd.app.waiters.drain()
    for _ in range(20):
        await asyncio.sleep(0)

    assert not crowd.served
    assert len(crowd.asked) < COUNT


def test_what_is_read_of_records_by_their_kind_is_there():
    """Kinds are compared, so no type checker sees that each has what is read of it."""
    assert all("pool" in kind.__struct_fields__ for kind in waiters._WAKES)
    assert all(
        "request_sequence" in kind.__struct_fields__ for kind in payload_keys._ENDS_A_REQUEST
    )
