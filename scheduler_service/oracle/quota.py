"""Short-admission counters and promotion debts, moved one admission at a time.

Source:
    QBA §III-A6: k counted short admissions earn one debt; only an admitted promotion clears it.
"""

from scheduler_service.core.decisions import Rule
from scheduler_service.core.policy import (
    AdmissionPoint,
    ClassOrder,
    PoolPolicy,
    PredictedClass,
)
from scheduler_service.oracle.ledger import Quota, Request


def advance(quota: Quota, k: int) -> None:
    """Counts one short admission; the counter stops at `k` until the debt is paid."""
    quota.count = min(quota.count + 1, k)
    quota.debt = quota.count == k


def clear(quota: Quota) -> None:
    """An admitted promotion pays the debt."""
    quota.count = 0
    quota.debt = False


def release(request: Request) -> None:
    """Forgets what the request still had to count; a promotion under way leaves its debt."""
    if request.promotes and request.counts_on is not None:
        request.counts_on.promoting = None
    request.counts_on = None
    request.promotes = False


def dispatched(policy: PoolPolicy, quota: Quota, request: Request, rule: Rule) -> None:
    """The first dispatch of a request: the admission point, unless that is the prefill."""
    if policy.class_order is not ClassOrder.QBA:
        return
    promotes = rule is Rule.PROMOTION
    if not promotes and request.predicted_class is PredictedClass.LONG:
        return
    request.counts_on = quota
    request.promotes = promotes
    if promotes:
        quota.promoting = request
    if policy.admission_point is AdmissionPoint.DISPATCH:
        admitted(policy, request)


def admitted(policy: PoolPolicy, request: Request) -> None:
    """The admission point of a request that still has to count; others change nothing."""
    quota, promotes = request.counts_on, request.promotes
    if quota is None:
        return
    if policy.class_order is ClassOrder.QBA:
        if promotes:
            clear(quota)
        else:
            advance(quota, policy.quota_k)
    release(request)


def retuned(quota: Quota, k: int) -> None:
    """A new k: a debt stays a debt, a count is cut."""
    quota.count = k if quota.debt else min(quota.count, k)
    quota.debt = quota.count == k
