"""A gateway's turn, for threads: wait for it, use it, end it.

The twin of `fairsched.async_turn`; see there.  News that comes after the grant (a worker that lost
its lease) is read by `next_grant` only.
"""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, cast

from fairsched import errors, jobs
from fairsched.async_turn import WAIT_MARGIN_S
from fairsched.backoff import Backoff
from fairsched.connection import ATTEMPTS_MAX
from fairsched.requests import duration, new_usage, seconds
from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb

if TYPE_CHECKING:
    from fairsched.sync_calls import SyncStream
    from fairsched.sync_client import Fairsched

log = logging.getLogger("fairsched")

OnQueued = Callable[[pb.EnqueueResponse], None]


@dataclasses.dataclass(slots=True, eq=False)
class Turn:
    """It is the request's turn.

    Attributes:
        request: The request as enqueued.
        grant: What the service granted; empty for a local turn.
        local: True if the service was away and the turn was given locally, without a lease.
        lost: With a gate: set when the lease was lost, or the request was cancelled.
        end_error: Why the turn could not be ended as wished; None if it was, or is still to be.
    """

    request: pb.EnqueueRequest
    grant: pb.AcquireGranted
    local: bool
    lost: threading.Event = dataclasses.field(default_factory=threading.Event)
    end_error: errors.FairschedError | None = None
    _usage: pb.Usage | None = None
    _completed: bool = False
    _acquire: "Acquire | None" = None

    @property
    def lease_id(self) -> str:
        """The lease: what the gateway shows the worker; empty for a local turn."""
        return self.grant.lease_id

    @property
    def worker_id(self) -> str:
        """The worker that took the turn; empty with a gate."""
        return self.grant.worker_id

    @property
    def endpoint(self) -> str:
        """Where to reach that worker; empty with a gate."""
        return self.grant.endpoint

    @property
    def wait(self) -> float:
        """Time from acceptance to the grant, seconds."""
        return seconds(self.grant.wait)

    def used(self, *, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """Notes what the request really used; reported when the turn ends."""
        self._usage = new_usage(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def next_grant(self, error: BaseException | str = "") -> None:
        """Gives the lease back, if it is still held, and waits for another worker.

        Args:
            error: Why this worker would not do.

        Raises:
            NotGrantedError: The request ended instead.
            MisuseError: The turn is a gate's or local: there is no other worker.
        """
        if self._acquire is None or not self.worker_id:
            msg = "only a turn that a worker took can be given to another"
            raise errors.MisuseError(msg)
        self.grant = self._acquire.give_back(self.lease_id, error)

    def completed(self) -> None:
        """Waits until a worker has completed the request, through redeliveries if there are any.

        For a gateway that leaves all of it to the worker.  One that streams from `endpoint` knows
        when it is done, and leaves the turn then.

        Raises:
            NotGrantedError: The request ended otherwise: it failed, was cancelled, ….
            MisuseError: The turn is a gate's or local: there is no worker.
        """
        if self._acquire is None or not self.worker_id:
            msg = "only a turn that a worker took is completed by one"
            raise errors.MisuseError(msg)
        while not self._completed:
            try:
                self.grant = self._acquire.following()
            except errors.NotGrantedError as end:
                if end.state != decision_pb2.REQUEST_STATE_SUCCEEDED:
                    raise
                self._completed = True


class Acquire:
    """Context that waits for a turn on entry and ends it on exit."""

    def __init__(
        self,
        client: "Fairsched",
        request: pb.EnqueueRequest,
        lease_duration: float | None,
        on_queued: OnQueued | None,
    ) -> None:
        self._client = client
        self._request = request
        self._lease_duration = lease_duration
        self._on_queued = on_queued
        self._stream: SyncStream[pb.AcquireResponse] | None = None
        self._accepted = False
        self._late = threading.Event()
        self._turn: Turn | None = None

    def __enter__(self) -> Turn:
        """Waits for the turn.

        Raises:
            NotGrantedError: The request expired, was shed, cancelled, ….
            UnavailableError: The service is away and `on_unavailable` says to refuse.
            CallError: The service refused the request.
        """
        try:
            grant = self._first_grant()
        except errors.UnavailableError:
            self._drop()
            if not self._client.local_turns.take():
                raise
            log.warning("the service is away; the turn of %s is local", self._request.request_id)
            self._turn = Turn(self._request, pb.AcquireGranted(), local=True)
            return self._turn
        except BaseException:
            self._drop()
            raise
        turn = self._turn = Turn(self._request, grant, local=False, _acquire=self)
        if not grant.worker_id:
            self._drop()
            self._client.leases.keep(
                grant.lease_id,
                seconds(grant.lease_duration),
                on_lost=lambda _: turn.lost.set(),
                on_cancel=turn.lost.set,
            )
        return turn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the turn; what fails then is kept in `end_error`, not raised."""
        turn = self._turn
        assert turn is not None
        if turn.local:
            self._client.local_turns.release()
            return
        self._client.leases.drop(turn.lease_id)
        if turn._completed:
            self._drop()
            return
        if error is None:
            completion = jobs.succeeded(turn.lease_id, turn._usage)
        else:
            completion = jobs.failed(turn.lease_id, error)
        try:
            self._client.scheduler.Complete(completion)
        except errors.FairschedError as problem:
            turn.end_error = problem
            log.warning("the turn of %s did not end: %s", turn.request.request_id, problem)
        finally:
            self._drop()

    def give_back(self, lease_id: str, error: BaseException | str) -> pb.AcquireGranted:
        """Gives a worker's lease back and returns the next grant."""
        lost = (errors.NotFoundError, errors.SupersededError, errors.WrongStateError)
        with contextlib.suppress(*lost):  # then the next grant is under way
            self._client.scheduler.Complete(jobs.given_back(lease_id, error))
        while (grant := self._granted()).lease_id == lease_id:
            pass  # the service restarted and says it again
        return grant

    def following(self) -> pb.AcquireGranted:
        """Returns the next grant; raises how the request ended if there is none."""
        return self._granted()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()

    def _first_grant(self) -> pb.AcquireGranted:
        if not self._request.HasField("max_wait"):
            return self._granted()
        limit = seconds(self._request.max_wait) + WAIT_MARGIN_S
        timer = threading.Timer(limit, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            return self._granted()
        except errors.FairschedError as error:
            if not self._late.is_set():
                raise
            message = f"no word from the service within {limit:g} s"
            raise errors.deadline(message) from error
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self._late.set()
        self._drop()

    def _granted(self) -> pb.AcquireGranted:
        """Returns the next grant; resumes after a restart of the service.

        One that was not accepted yet is tried as often as any other call.
        """
        backoff, away_since, attempts = Backoff(longest=2.0), None, 0
        while True:
            try:
                return self._listen()
            except errors.UnavailableError:
                attempts += 1
                away_since = away_since or time.monotonic()
                pause = backoff.pause()
                away = time.monotonic() + pause - away_since
                if not self._accepted and attempts >= ATTEMPTS_MAX:
                    raise
                if self._late.is_set() or away > self._client.resume_within:
                    raise
            self._late.wait(pause)

    def _listen(self) -> pb.AcquireGranted:
        """Returns the next grant; opens the stream if there is none."""
        stream = self._stream
        if stream is None:
            request = pb.AcquireRequest(
                request=self._request, lease_duration=duration(self._lease_duration)
            )
            call = self._client.scheduler.Acquire(request)
            stream = self._stream = cast("SyncStream[pb.AcquireResponse]", call)
        try:
            for response in stream:
                match response.WhichOneof("event"):
                    case "queued":
                        self._accepted = True
                        if self._on_queued is not None:
                            self._on_queued(response.queued.outlook)
                    case "granted":
                        self._accepted = True
                        return response.granted
                    case "ended":
                        ended = response.ended
                        raise errors.NotGrantedError(ended.state, ended.reason, ended.error)
                    case None:  # news that this client does not know yet
                        continue
        except errors.UnavailableError:
            self._stream = None
            raise
        self._stream = None
        raise errors.unavailable("the service closed the stream without a last word")
