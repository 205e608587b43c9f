"""What both sessions share, without a transport."""

import asyncio
from types import SimpleNamespace

import pytest

from scheduler_service.core.errors import NotReady
from scheduler_service.rpc.streams import Stream


class Idle:
    """A peer that says one thing, later."""

    def __init__(self):
        self.speak = asyncio.Event()

    async def read(self):
        await self.speak.wait()
        self.speak.clear()
        return "a message"

    async def write(self, _message):
        raise AssertionError("there is nothing to say")


class Broken(Stream):
    """A stream that cannot say what there is to say."""

    closed = fresh = False

    def take(self, _message):
        self.fresh = True
        return 1

    def has_news(self):
        return self.fresh

    def collect(self):
        raise NotReady("LOG_STALLED", "The log has failed.")

    def messages(self, _news):
        return ()

    def close(self):
        self.closed = True


async def test_a_stream_whose_news_cannot_be_collected_ends_with_the_error():
    """Also when its writer was idle: nobody else would hear of it, and the peer would wait."""
    limits = SimpleNamespace(session_outbox=10)
    peer = Idle()
    stream = Broken(SimpleNamespace(streams=set(), limits=limits), peer, None)
    served = asyncio.create_task(stream.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    peer.speak.set()

    with pytest.raises(NotReady, match="The log has failed"):
        await asyncio.wait_for(served, 5)
    assert stream.closed
