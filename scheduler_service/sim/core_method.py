"""The service's scheduling core as a method of the simulator.

Every call becomes the command that the server would apply (Enqueue, NextDispatch, RenewLease with
a prefill report, Complete), and every answer is read as the server reads it.  There is no
second implementation of the service's policies here and no other way into the core.

Without faults a lease lasts as long as a run may and is not provisional, so that nobody has to
renew it; with faults (`LeaseTerms`) leases are short, must be confirmed and are renewed, as a
worker does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from scheduler_service.core import answers as a
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import (
    PRESETS,
    AdmissionPoint,
    ClassBy,
    ClassOrder,
    CostSource,
    Placement,
    PoolPolicy,
    PredictedClass,
)
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State
from scheduler_service.sim.method import NOTHING, STALLED

if TYPE_CHECKING:
    from scheduler_service.sim.model import RunLog, Workload

POOL: Final = "sim"
_POOLS: Final = (POOL,)
_DAY_NS: Final = 86_400_000_000_000
_OUT_OF_ORDER: Final = frozenset({d.Rule.PROMOTION, d.Rule.AGED})
_NOTHING_WAITS: Final = frozenset(
    {d.EmptyReason.EMPTY, d.EmptyReason.HELD_BY_CAP, d.EmptyReason.PAUSED}
)


def paper_policy(order: str, *, quota_k: int = 5, gamma_bp: int = 8000) -> PoolPolicy:
    """Returns a class order as in the experiments of the QBA paper.

    The core's preset of that name, with the paper's settings: admission counted at prefill
    completion, the whole history as reference sample, and the label on the response.

    Args:
        order: `fcfs`, `psf`, `aa` or `qba`.
        quota_k: k.
        gamma_bp: gamma in basis points.
    """
    return msgspec.structs.replace(
        PRESETS[order],
        quota_k=quota_k,
        aging_quantile_bp=gamma_bp,
        aging_sample_window=0,
        aging_min_sample=1,
        admission_point=AdmissionPoint.PREFILL_COMPLETE,
        class_by=ClassBy.RESPONSE,
    )


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How leases are held.

    Attributes:
        duration_ns: Length of a lease.
        hand_over: Whether it must be confirmed.
    """

    duration_ns: int = _DAY_NS
    hand_over: bool = False


class CoreMethod:
    """The core with one pool.

    Args:
        name: Name for reports.
        policy: Policy of the pool.
        terms: How leases are held.

    Attributes:
        state: The core's state.
        decisions: Receives every decision if it is not None (tests, exports).
        slack: Slack with which each request was dispatched, overtaking included, micro cost
            units; only with a finite slack.
    """

    metered = False

    def __init__(
        self, name: str, policy: PoolPolicy, terms: LeaseTerms | None = None, *, keep: bool = False
    ) -> None:
        self.name = name
        self.terms = terms or LeaseTerms()
        self.policy = msgspec.structs.replace(
            policy,
            cost_source=CostSource.CALLER,
            max_waiting=100_000_000,
            max_waiting_per_user=100_000_000,
            max_leases_per_worker=1_000_000_000,
            lease_duration_ns=self.terms.duration_ns,
        )
        self.decisions: list[d.Decision] | None = [] if keep else None
        self.slack: dict[int, int] = {}
        self.waiting = 0

    def bind(self, workload: Workload, needs: list[int], log: RunLog) -> None:
        """Makes a fresh state with one pool, and the users' weights."""
        self._log = log
        self._workload = workload
        self._needs = needs
        self._arrivals = workload.arrival_ns
        self._ids = [str(i) for i in range(len(workload))]
        self._users = [workload.users[user] for user in workload.user]
        self._classes = [
            PredictedClass.LONG if long else PredictedClass.SHORT
            for long in workload.predicted_long
        ]
        self._workers: dict[int, str] = {}
        self.leases: list[str] = [""] * len(workload)
        self._call = 0
        self._new: list[d.Decision] = []
        self._kv = max(needs, default=1)
        self._any = d.Offer(-1, self._kv)
        self._reports = (
            self.policy.admission_point is AdmissionPoint.PREFILL_COMPLETE
            and self.policy.class_order is ClassOrder.QBA
        )
        self._charged = not self.policy.unbounded
        self._reach = self._overtake_reach()
        self.waiting = 0
        self.slack = {}
        self.state = State()
        self.apply(
            c.ConfigurePool(
                now_ns=0, pool=POOL, policy=self.policy, policy_digest="sim", create=True
            )
        )
        for user, weight in zip(workload.users, workload.weights_milli, strict=True):
            if weight != self.policy.default_weight_milli:
                self.apply(
                    c.ConfigureUser(
                        now_ns=0, pool=POOL, user_id=user, weight_milli=weight, max_in_flight=-1
                    )
                )

    def _overtake_reach(self) -> int | None:
        """Returns how far overtaking reaches past the slack; None is "as far as the slack"."""
        if self.policy.placement is Placement.STALL:
            return 0
        own = self.policy.overtake_slack_micros
        return None if own < 0 else own

    def apply(self, command: c.Command) -> object:
        """Applies one command, as the server does, and keeps its decisions if asked to."""
        new = self._new
        new.clear()
        answer = apply(self.state, command, new)
        if self.decisions is not None:
            self.decisions.extend(new)
        return answer

    def enqueue(self, request: int, now_ns: int) -> None:
        """Applies `Enqueue`."""
        self.apply(
            c.Enqueue(
                now_ns=now_ns,
                pool=POOL,
                request_id=self._ids[request],
                user_id=self._users[request],
                cost=self._workload.cost[request],
                predicted_class=self._classes[request],
                kv_tokens=self._needs[request],
                prompt_tokens=self._workload.prompt[request],
                expected_output_tokens=self._workload.predicted_response[request],
            )
        )
        self.waiting += 1

    def dispatch(self, engine: int, now_ns: int, free_tokens: int) -> int:
        """Applies `NextDispatch` for one request."""
        self._call += 1
        answer = self.apply(
            c.NextDispatch(
                now_ns=now_ns,
                nonce=f"n{self._call}",
                pools=_POOLS,
                worker=self.worker(engine),
                offer=self._any if free_tokens < 0 else d.Offer(free_tokens, self._kv),
                hand_over=self.terms.hand_over,
            )
        )
        assert isinstance(answer, a.Dispatches)
        if not answer.granted:
            return NOTHING if answer.empty_reason in _NOTHING_WAITS else STALLED
        granted = answer.granted[0]
        request = int(granted.request_id)
        self.leases[request] = granted.held_lease.lease_id
        self.waiting -= 1
        log = self._log
        if log.start_ns[request] >= 0:
            log.attempts[request] = log.attempts.get(request, 0) + 1
            return request
        log.start_ns[request] = now_ns
        log.order.append(request)
        if granted.rule in _OUT_OF_ORDER:
            log.promoted.add(request)
        if self._charged:
            self._note_slack(request)
        return request

    def _note_slack(self, request: int) -> None:
        """Keeps the slack that the dispatch record names, with how far overtaking reaches."""
        for decision in self._new:
            if type(decision) is d.Dispatched:
                reach = decision.slack_micros if self._reach is None else self._reach
                self.slack[request] = decision.slack_micros + reach

    def worker(self, engine: int) -> str:
        """Returns the worker name of an engine."""
        name = self._workers.get(engine)
        if name is None:
            name = self._workers[engine] = f"engine-{engine}"
        return name

    def prefill_complete(self, request: int, now_ns: int) -> None:
        """Applies `RenewLease` with the report, where that is the admission point."""
        if self._reports:
            lease = (self.leases[request],)
            self.apply(c.RenewLease(now_ns=now_ns, lease_ids=lease, prefill_complete=lease))

    def complete(self, request: int, now_ns: int) -> None:
        """Applies `Complete`."""
        self.apply(
            Complete(
                now_ns=now_ns,
                lease_id=self.leases[request],
                outcome=d.Outcome.SUCCEEDED,
                prompt_tokens=self._workload.prompt[request],
                output_tokens=self._workload.response[request],
            )
        )


def with_changes(policy: PoolPolicy, **changes: object) -> PoolPolicy:
    """Returns `policy` with some fields changed."""
    return msgspec.structs.replace(policy, **changes)
