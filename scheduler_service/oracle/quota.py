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
    """A promotion that was given up before its admission point: the debt stays."""
    if request.promotes is not None:
        request.promotes.promoting = None
        request.promotes = None


def dispatched(policy: PoolPolicy, quota: Quota, request: Request, rule: Rule) -> None:
    """The first dispatch of a request: the admission point, unless that is the prefill."""
    if policy.class_order is not ClassOrder.QBA:
        return
    if rule is Rule.PROMOTION:
        request.promotes = quota
        quota.promoting = request
    if policy.admission_point is AdmissionPoint.DISPATCH:
        admitted(policy, quota, request)


def owes_admission(policy: PoolPolicy, request: Request) -> bool:
    """Whether a completed prefill of the request still has to be counted.

    A promotion pays its debt whatever the policy has become since it was chosen.
    """
    by_prefill = (
        policy.class_order is ClassOrder.QBA
        and policy.admission_point is AdmissionPoint.PREFILL_COMPLETE
    )
    return request.promotes is not None or (by_prefill and not request.counted)


def admitted(policy: PoolPolicy, quota: Quota, request: Request) -> None:
    """The admission point: a promotion pays, a short counts once, another long does neither."""
    if request.promotes is not None:
        clear(request.promotes)
        release(request)
    elif request.predicted_class is PredictedClass.SHORT and not request.counted:
        advance(quota, policy.quota_k)
    request.counted = True


def retuned(quota: Quota, k: int) -> None:
    """A new k: a debt stays a debt, a count is cut."""
    quota.count = k if quota.debt else min(quota.count, k)
    quota.debt = quota.count == k
