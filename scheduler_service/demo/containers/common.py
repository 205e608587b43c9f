"""What the demo's worker and gateway have in common: the pool, patience, signals."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fairsched import AsyncFairsched, errors
from fairsched.backoff import Backoff
from fairsched.v1 import admin_service_pb2

log = logging.getLogger("demo")

Answer = TypeVar("Answer")


def set_up_logging() -> None:
    """Sends log lines to standard error, each with a time."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


def stop_on_signals() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


async def patiently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats a call while the service is away or full.

    Every call here names an id, so a repeat changes nothing twice.
    """
    backoff = Backoff(longest=2.0)
    while True:
        try:
            return await call()
        except (errors.UnavailableError, errors.DeadlineError):
            pause = backoff.pause()
        except errors.LimitReachedError as error:
            pause = error.retry_after or backoff.pause()
        await asyncio.sleep(pause)


async def ensure_pool(client: AsyncFairsched, pool: str) -> None:
    """Creates the pool with the default policy, unless it is there."""
    try:
        await patiently(
            lambda: client.admin.CreatePool(admin_service_pb2.CreatePoolRequest(pool=pool))
        )
    except errors.ConflictError:
        log.info("pool %s is there", pool)
    else:
        log.info("pool %s created", pool)
