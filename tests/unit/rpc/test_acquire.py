"""A caller of `Acquire` that leaves over what it is told."""

import asyncio

import pytest

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.rpc.acquire import say
from scheduler_service.rpc.events import Event

GRANT = Event(granted=pb.AcquireGranted(lease_id="lease"), lease_id="lease", last=True)


class Caller:
    """Reads a message, and hangs up before the transport says that it went out."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.reads = asyncio.Event()
        self.told = asyncio.Event()
        self.events: list[Event] = []

    async def write(self, _message: pb.AcquireResponse) -> None:
        self.reads.set()
        await self.told.wait()
        if self.error is not None:
            raise self.error

    def sent(self, event: Event) -> None:
        self.events.append(event)

    async def hears_and_hangs_up(self) -> None:
        telling = asyncio.create_task(say(self, pb.AcquireResponse(), GRANT, self))
        await self.reads.wait()
        telling.cancel()
        asyncio.get_running_loop().call_soon(self.told.set)
        with pytest.raises(asyncio.CancelledError):
            await telling


async def test_a_turn_that_went_out_is_the_callers_even_if_it_hangs_up_at_once():
    """The request is not cancelled: its caller is using its turn."""
    caller = Caller(None)
    await caller.hears_and_hangs_up()
    assert caller.events == [GRANT]


async def test_a_turn_that_did_not_go_out_has_reached_nobody():
    """The transport says so by an error."""
    caller = Caller(RuntimeError("cancelled"))
    await caller.hears_and_hangs_up()
    assert caller.events == []
