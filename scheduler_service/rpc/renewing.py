"""Renewals of leases: checks, the decision, the answer; each lease has its own result."""

from collections.abc import Sequence

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.app.application import Application
from scheduler_service.app.limits import BATCH_MAX
from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core.errors import SchedulerError, Superseded
from scheduler_service.rpc import convert, status
from scheduler_service.rpc.finishing import Finishing
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.validate import Checks

_PROGRESS = frozenset({int(pb.PROGRESS_PREFILL_COMPLETE)})


class Renewing:
    """Extends leases.

    Args:
        app: The use cases.
        finishing: Knows who may see which lease.
    """

    def __init__(self, app: Application, finishing: Finishing) -> None:
        self._app = app
        self._finishing = finishing

    def check(
        self, items: Sequence[pb.LeaseRenewal], checks: Checks, limit: int = BATCH_MAX
    ) -> None:
        """Checks the renewals of a call."""
        if not checks.entries("renewals", len(items), limit):
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
        self._app.presence.sign(worker)
        refused = {item.lease_id: self._renewal_error(item, caller, worker) for item in items}
        good = [item for item in items if refused[item.lease_id] is None]
        engine = self._app.engine
        now_ns = engine.now_ns()
        answers: dict[str, a.Renewed] = {}
        if good:
            done = pb.PROGRESS_PREFILL_COMPLETE
            renewed: tuple[a.Renewed, ...] = engine.apply(
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
                told = self._finishing.item_error("RenewLease", error)
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
            self._finishing.require_lease(caller, item.lease_id)
        except SchedulerError as error:
            return error
        request = state.leases.get(item.lease_id)
        lease = None if request is None else request.lease
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
