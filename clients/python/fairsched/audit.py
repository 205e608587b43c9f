"""Follows the decision log: resumes where it stopped, says so when the log no longer goes back."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, cast

from fairsched import errors
from fairsched.backoff import Backoff
from fairsched.v1 import audit_service_pb2 as pb
from fairsched.v1 import audit_service_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from fairsched.async_calls import AsyncStream
    from fairsched.sync_calls import SyncStream


async def watch(
    stub: "pb_grpc.AuditServiceAsyncStub",
    after_sequence: int | None = None,
    filter: pb.DecisionFilter | None = None,
    *,
    include_records: bool = False,
    reconnect: bool = True,
) -> AsyncIterator[pb.WatchDecisionsResponse]:
    """Yields what the service sends: decisions as they become durable, and heartbeats.

    Nothing is left out and nothing comes twice, over any number of lost connections.  Keep
    `scanned_sequence` of the last message to go on from there later.

    Args:
        stub: `AsyncFairsched.audit`.
        after_sequence: Begin behind this sequence; None begins with the next decision.
        filter: Only decisions that match.
        include_records: Adds the stored record to each decision.
        reconnect: False raises `UnavailableError` instead of going on.

    Raises:
        TrimmedError: The log was pruned past the place where it should go on.
    """
    backoff = Backoff()
    while True:
        request = pb.WatchDecisionsRequest(
            after_sequence=after_sequence, filter=filter, include_records=include_records
        )
        stream = cast(
            "AsyncStream[pb.WatchDecisionsRequest, pb.WatchDecisionsResponse]",
            stub.WatchDecisions(request),
        )
        read_any = False
        try:
            async for response in stream:
                read_any = True
                backoff.reset()
                yield response
                after_sequence = response.scanned_sequence
        except errors.UnavailableError:
            if not reconnect:
                raise
        except errors.LimitReachedError:  # cut off for reading slowly: go on from here
            if not (reconnect and read_any):
                raise
        finally:
            stream.cancel()
        if not reconnect:
            return
        await asyncio.sleep(backoff.pause())


def watch_in_thread(
    stub: pb_grpc.AuditServiceStub,
    after_sequence: int | None = None,
    filter: pb.DecisionFilter | None = None,
    *,
    stop: threading.Event | None = None,
    include_records: bool = False,
    reconnect: bool = True,
) -> Iterator[pb.WatchDecisionsResponse]:
    """Does what `watch` does, for threads, until `stop` is set."""
    stop = stop or threading.Event()
    backoff = Backoff()
    while not stop.is_set():
        request = pb.WatchDecisionsRequest(
            after_sequence=after_sequence, filter=filter, include_records=include_records
        )
        stream = cast("SyncStream[pb.WatchDecisionsResponse]", stub.WatchDecisions(request))
        read_any = False
        try:
            for response in stream:
                read_any = True
                backoff.reset()
                yield response
                after_sequence = response.scanned_sequence
                if stop.is_set():
                    return
        except errors.UnavailableError:
            if not reconnect:
                raise
        except errors.LimitReachedError:  # cut off for reading slowly: go on from here
            if not (reconnect and read_any):
                raise
        finally:
            stream.cancel()
        if not reconnect:
            return
        stop.wait(backoff.pause())
