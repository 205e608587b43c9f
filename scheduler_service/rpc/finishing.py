"""Completions, renewals and cancels: checks, the decision, the answer.

Shared by the unary calls, the batches, `NextDispatch` and the sessions.  Functions named `…_result`
never raise an error of the core: it becomes the result of that item, and spoils no other.
"""

from collections.abc import Iterable, Sequence

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import (
    BATCH_MAX,
    ERROR_BYTES_MAX,
    REASON_BYTES_MAX,
    TOKENS_MAX,
)
from scheduler_service.core import commands as c
from scheduler_service.core.decisions import Outcome
from scheduler_service.core.errors import SchedulerError, Superseded, Unknown
from scheduler_service.rpc import convert, status
from scheduler_service.rpc.calls import Runtime
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.validate import Checks

_OUTCOMES = frozenset(int(value) for value in Outcome)
_PROGRESS = frozenset({int(pb.PROGRESS_PREFILL_COMPLETE)})
_NOT_STATED = -1


class Finishing:
    """Ends, extends and cancels what was given out.

    Args:
        app: The use cases.
        runtime: What all servicers share.
    """

    def __init__(self, app: Application, runtime: Runtime) -> None:
        self._app = app
        self._runtime = runtime

    # -- completions --------------------------------------------------------------------------

    def complete(
        self, x: pb.CompleteRequest, caller: Identity, *, path: str = "", session_id: str = ""
    ) -> pb.CompleteResponse:
        """Ends a lease and returns the answer, to be told when it is durable.

        Args:
            x: As stated.
            caller: Who states it.
            path: Where the message stands in its call, with a dot at the end.
            session_id: Session of the stream it came over; empty takes the one stated.

        Raises:
            InvalidCommand: Names every bad field.
            Unknown: LEASE_UNKNOWN.
            Superseded: LEASE_SUPERSEDED.
            WrongState: LEASE_EXPIRED.
            Denied: LEASE_OF_OTHER_WORKER.
        """
        checks = Checks(path)
        checks.id("lease_id", x.lease_id)
        checks.enum("outcome", x.outcome, _OUTCOMES, required=True)
        prompt, output = _NOT_STATED, _NOT_STATED
        if x.HasField("usage"):
            usage = x.usage
            if usage.HasField("prompt_tokens"):
                prompt = checks.number("usage.prompt_tokens", usage.prompt_tokens, 0, TOKENS_MAX)
            if usage.HasField("output_tokens"):
                output = checks.number("usage.output_tokens", usage.output_tokens, 0, TOKENS_MAX)
        checks.text("error", x.error, ERROR_BYTES_MAX)
        checks.id("session_id", x.session_id, required=False)
        checks.done()
        self._require_sight(caller, x.lease_id)
        engine = self._app.engine
        done: c.Finished = engine.apply(
            c.Complete(
                now_ns=engine.now_ns(),
                nonce=engine.nonce(),
                peer=caller.name,
                lease_id=x.lease_id,
                outcome=Outcome(x.outcome),
                worker=x.session_id or session_id,
                prompt_tokens=prompt,
                output_tokens=output,
                error=x.error,
            )
        )
        return pb.CompleteResponse(
            pool=done.pool,
            request_id=done.request_id,
            state=int(done.state),  # type: ignore[arg-type]
            duplicate=done.existing is c.Existing.REPEATED,
        )

    def complete_results(
        self,
        items: Iterable[pb.CompleteRequest],
        caller: Identity,
        *,
        field: str = "completions",
        session_id: str = "",
    ) -> list[pb.CompleteResult]:
        """Ends leases, each by itself."""
        results = []
        for index, item in enumerate(items):
            try:
                path = f"{field}[{index}]."
                response = self.complete(item, caller, path=path, session_id=session_id)
                results.append(pb.CompleteResult(response=response))
            except SchedulerError as error:
                results.append(pb.CompleteResult(error=self.item_error("Complete", error)))
        return results

    def _require_sight(self, caller: Identity, lease_id: str) -> None:
        """Checks that the caller may know of a lease; if not, there is no such lease."""
        if not caller.pools and not caller.user_prefixes:
            return
        state = self._app.engine.state
        found = state.leases.get(lease_id)
        if found is not None:
            name, user_id = found[0], found[1].user_id
        else:
            name, request_id = state.old_leases.get(lease_id, ("", ""))
            pool = state.pools.get(name)
            gone = None if pool is None else pool.gone.get(request_id)
            request = None if pool is None else pool.requests.get(request_id)
            user_id = getattr(gone or request, "user_id", "")
        if not name:
            return
        if not caller.sees_pool(name) or not self._runtime.user_ids.sees(caller, user_id):
            raise Unknown("LEASE_UNKNOWN", f"There is no lease {lease_id!r}.", leaseId=lease_id)

    # -- renewals -----------------------------------------------------------------------------

    def check_renewals(
        self, items: Sequence[pb.LeaseRenewal], checks: Checks, limit: int = BATCH_MAX
    ) -> None:
        """Checks the renewals of a call."""
        if len(items) > limit:
            checks.bad("renewals", f"must have at most {limit} entries, has {len(items)}")
            return
        for index, item in enumerate(items):
            checks.id(f"renewals[{index}].lease_id", item.lease_id)
            checks.enum(f"renewals[{index}].progress", item.progress, _PROGRESS)

    def renew(
        self,
        items: Sequence[pb.LeaseRenewal],
        caller: Identity,
        *,
        worker: str,
        lease_duration_ns: int,
    ) -> list[pb.LeaseRenewalResult]:
        """Extends leases that were checked before, each by itself; one result for each, in order.

        Args:
            items: As stated.
            caller: Who states it.
            worker: Key of the worker that holds them; empty for a gateway with a gate.
            lease_duration_ns: New length from now; 0 takes the pool's.
        """
        refused = {item.lease_id: self._renewal_error(item, caller, worker) for item in items}
        good = [item for item in items if refused[item.lease_id] is None]
        engine = self._app.engine
        now_ns = engine.now_ns()
        answers: dict[str, c.Renewed] = {}
        if good:
            done = pb.PROGRESS_PREFILL_COMPLETE
            renewed: tuple[c.Renewed, ...] = engine.apply(
                c.RenewLease(
                    now_ns=now_ns,
                    nonce=engine.nonce(),
                    peer=caller.name,
                    worker=worker,
                    lease_ids=tuple(item.lease_id for item in good),
                    prefill_complete=tuple(i.lease_id for i in good if i.progress == done),
                    lease_duration_ns=lease_duration_ns,
                )
            )
            answers = {answer.lease_id: answer for answer in renewed}
        results = []
        for item in items:
            error = refused[item.lease_id]
            if error is None and answers[item.lease_id].problem:
                error = status.lease_error(answers[item.lease_id].problem, item.lease_id)
            if error is not None:
                told = self.item_error("RenewLease", error)
                results.append(pb.LeaseRenewalResult(lease_id=item.lease_id, error=told))
                continue
            answer = answers[item.lease_id]
            results.append(
                pb.LeaseRenewalResult(
                    lease_id=item.lease_id,
                    lease_duration=convert.time_left(answer.expire_ns, now_ns),
                    cancel_requested=answer.cancel_requested,
                )
            )
        return results

    def _renewal_error(
        self, item: pb.LeaseRenewal, caller: Identity, worker: str
    ) -> SchedulerError | None:
        """Returns why this caller cannot renew this lease, if that is known without the core."""
        state = self._app.engine.state
        try:
            self._require_sight(caller, item.lease_id)
        except SchedulerError as error:
            return error
        found = state.leases.get(item.lease_id)
        lease = None if found is None else found[1].lease
        if lease is None or not lease.worker:
            return None
        holder = state.workers.get(lease.worker)
        if holder is None:
            return None
        if holder.registered and worker != lease.worker:
            return status.lease_error("LEASE_OF_OTHER_WORKER", item.lease_id)
        if self._app.workers.superseded(holder):
            return Superseded(
                "SESSION_SUPERSEDED",
                f"Worker {holder.name!r} has opened another session since.",
                leaseId=item.lease_id,
                workerId=holder.name,
            )
        return None

    # -- cancels ------------------------------------------------------------------------------

    def cancel(self, x: pb.CancelRequest, caller: Identity, *, path: str = "") -> pb.CancelResponse:
        """Cancels a request and returns the answer, to be told when it is durable.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED.
            Unknown: POOL_UNKNOWN, REQUEST_UNKNOWN.
        """
        checks = Checks(path)
        checks.id("pool", x.pool)
        checks.id("request_id", x.request_id)
        checks.reason("reason", x.reason, REASON_BYTES_MAX)
        checks.done()
        caller.require_pool(x.pool)
        self.require_request(caller, x.pool, x.request_id)
        engine = self._app.engine
        done: c.Finished = engine.apply(
            c.Cancel(
                now_ns=engine.now_ns(),
                nonce=engine.nonce(),
                peer=caller.name,
                pool=x.pool,
                request_id=x.request_id,
                reason=x.reason or "CALLER",
            )
        )
        return pb.CancelResponse(
            state=int(done.state),  # type: ignore[arg-type]
            duplicate=done.existing is c.Existing.REPEATED,
        )

    def cancel_results(
        self, items: Iterable[pb.CancelRequest], caller: Identity
    ) -> list[pb.CancelResult]:
        """Cancels requests, each by itself."""
        results = []
        for index, item in enumerate(items):
            try:
                response = self.cancel(item, caller, path=f"cancels[{index}].")
                results.append(pb.CancelResult(response=response))
            except SchedulerError as error:
                results.append(pb.CancelResult(error=self.item_error("Cancel", error)))
        return results

    def require_request(self, caller: Identity, pool_name: str, request_id: str) -> None:
        """Checks that the caller may know of a request; if not, there is no such request.

        Raises:
            Unknown: REQUEST_UNKNOWN.
        """
        if not caller.user_prefixes:
            return
        pool = self._app.engine.state.pools.get(pool_name)
        if pool is None:
            return
        known = (
            pool.requests.get(request_id) or pool.gone.get(request_id) or pool.dead.get(request_id)
        )
        if known is not None and not self._runtime.user_ids.sees(caller, known.user_id):
            raise Unknown(
                "REQUEST_UNKNOWN",
                f"There is no request {request_id!r} in pool {pool_name!r}.",
                pool=pool_name,
                requestId=request_id,
            )

    # -- errors -------------------------------------------------------------------------------

    def item_error(self, rpc: str, error: SchedulerError) -> pb.ItemError:
        """Returns an error as the result of one item, and takes note of it."""
        self._runtime.observer.refused(rpc, error.metadata.get("pool", ""), error.reason)
        return status.item_error(error, self._runtime.retry_seconds(error))
