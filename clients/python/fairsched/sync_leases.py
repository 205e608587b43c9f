"""Keeps leases alive in the background: one thread renews all leases of a client or worker.

The twin of `fairsched.async_leases` for threads; see there.
"""

import logging
import threading
import time
from collections.abc import Callable

from fairsched import errors
from fairsched.async_leases import BATCH, Held
from fairsched.backoff import Backoff
from fairsched.requests import duration, seconds
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1 import scheduler_service_pb2_grpc as pb_grpc

log = logging.getLogger("fairsched")


class LeaseKeeper:
    """Renews leases until they are dropped or lost.  Callbacks run in its thread."""

    def __init__(
        self, stub: pb_grpc.SchedulerServiceStub, lease_duration: float | None = None
    ) -> None:
        self._stub = stub
        self._lease_duration = lease_duration
        self._held: dict[str, Held] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.session_id = ""

    def keep(
        self,
        lease_id: str,
        length: float,
        on_lost: Callable[[errors.CallError], None],
        on_cancel: Callable[[], None],
    ) -> None:
        """Keeps a lease of `length` seconds alive from now on."""
        held = Held(lease_id, length, time.monotonic() + length / 3, on_lost, on_cancel)
        with self._changed:
            self._held[lease_id] = held
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="fairsched lease renewal", daemon=True
                )
                self._thread.start()

    def drop(self, lease_id: str) -> None:
        """Stops keeping a lease, whether or not it is kept."""
        with self._changed:
            self._held.pop(lease_id, None)

    def close(self) -> None:
        """Stops; leases expire on their own."""
        with self._changed:
            self._held.clear()
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        backoff = Backoff(longest=1.0)
        while (due := self._wait_for_due()) is not None:
            try:
                self._renew(due)
                backoff.reset()
            except errors.NotFoundError as error:
                for held in due:
                    self._lose(held, error)
            except errors.FairschedError as error:
                log.warning("leases could not be renewed and will be tried again: %s", error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, backoff.pause())

    def _wait_for_due(self) -> list[Held] | None:
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                due = [held for held in self._held.values() if held.renew_at <= now]
                if due:
                    return due[:BATCH]
                first = min((held.renew_at for held in self._held.values()), default=None)
                self._changed.wait(None if first is None else first - now)
            return None

    def _renew(self, due: list[Held]) -> None:
        response = self._stub.RenewLease(
            pb.RenewLeaseRequest(
                session_id=self.session_id,
                renewals=[pb.LeaseRenewal(lease_id=held.lease_id) for held in due],
                lease_duration=duration(self._lease_duration),
            )
        )
        now = time.monotonic()
        for held, result in zip(due, response.results, strict=True):
            if result.HasField("error"):
                self._lose(held, errors.from_item(result.error))
                continue
            held.length = seconds(result.lease_duration)
            held.renew_at = now + held.length / 3
            if result.cancel_requested and held.lease_id in self._held:
                held.on_cancel()

    def _lose(self, held: Held, error: errors.CallError) -> None:
        with self._changed:
            lost = self._held.pop(held.lease_id, None)
        if lost is not None:
            held.on_lost(error)
