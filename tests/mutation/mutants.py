"""The usual mistakes, each as a change of one or two lines of the core.

`golden` names the reviewed decision logs that come out differently with the mistake planted; the
oracle must find it besides, on random traces.
"""

from typing import NamedTuple

from tests.support.core import Edit


class Mutant(NamedTuple):
    """One planted mistake.

    Attributes:
        name: What is wrong.
        golden: Golden logs that show it.
        edits: How it is planted.
    """

    name: str
    golden: tuple[str, ...]
    edits: tuple[Edit, ...]


def _mutant(name: str, golden: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, tuple(golden.split()), tuple(Edit(*edit) for edit in edits))


_ARRIVAL = "meter_after = meter if meter > virtual_time else virtual_time"
_CHARGE = "charge = charge_for(request.cost, flow.weight_milli)"
_TIE = "tie = 0\n        if not self.user_by_user:"
_TIE_UPDATE = "meter, tie = flow.meter, 0\n        if not self.user_by_user:"
_FAILURES = "failures = request.failures + (cause is d.LeaseEndCause.EXPIRED)"
_LATE = "    request = state.leases.get(lease_id)\n    if request is None:\n        return"
_STALE = """    request = state.leases.get(lease_id)
    past = old_lease(state, lease_id)
    if request is None and past is not None:
        held = state.pools[past.pool].requests.get(past.request_id)
        request = None if held is None or held.lease is None else held
    if request is None:
        return"""

_REFUND = """def _refund(request: Request, how: d.RequestState) -> int:
    return request.cost * 1_000_000 if how is d.RequestState.CANCELLED else 0


def _end_in_flight("""
_SETTLE = """    _drop_lease(state, pool, request)
    pool.flows[request.user_id].meter += max(x.output_tokens, 0)
    reason = """

MUTANTS = [
    # Meters: SFQ §2
    _mutant(
        "reset on return", "sfq_2_4_rejoin", ("admission", _ARRIVAL, "meter_after = virtual_time")
    ),
    _mutant(
        "no rejoin", "sfq_2_4_rejoin sfq_2_5_idle", ("admission", _ARRIVAL, "meter_after = meter")
    ),
    _mutant(
        "no reset at global idle",
        "sfq_2_5_idle",
        ("recording", "after = max(before, pool.largest_meter)", "after = before"),
    ),
    _mutant(
        "busy period held open by leases",
        "sfq_2_5_idle",
        ("recording", "if pool.busy and pool.waiting == 0:", "if not pool.requests:"),
    ),
    _mutant(
        "charge at enqueue",
        "sfq_2_7 weights",
        ("admission", _ARRIVAL, "meter_after = max(meter, virtual_time) + x.cost * 1_000_000"),
        ("granting", _CHARGE, "charge = 0"),
    ),
    _mutant(
        "charge rounded down",
        "weights",
        (
            "charge",
            "return -(-exact // weight)",
            "return exact // weight",
        ),
    ),
    _mutant(
        "refund on cancel",
        "sfq_5_1_fixed",
        (
            "evolve",
            "    flow.in_flight -= 1\n",
            "    flow.in_flight -= 1\n    flow.meter -= _refund(request, how)\n",
        ),
        (
            "evolve",
            "def _end_in_flight(",
            _REFUND,
        ),
    ),
    _mutant(
        "settle on completion",
        "sfq_5_1_fixed",
        (
            "evolve",
            "    _drop_lease(state, pool, request)\n    reason = ",
            _SETTLE,
        ),
    ),
    _mutant(
        "v set to the winner's meter",
        "slack_window",
        ("granting", "time_after = frame.smallest\n", "time_after = meter\n"),
    ),
    _mutant(
        "tie by arrival at slack 0",
        "sfq_ties",
        ("backlog", _TIE, "tie = 0\n        if True:"),
        ("backlog", _TIE_UPDATE, "meter, tie = flow.meter, 0\n        if True:"),
    ),
    _mutant(
        "cap rejoin without max",
        "caps",
        ("lifecycle", "after = max(flow.meter, pool.virtual_time)", "after = flow.meter"),
    ),
    _mutant(
        "cap off by one",
        "caps",
        (
            "flows",
            "not flow.paused and not 0 < flow.max_in_flight <= flow.in_flight",
            "not flow.paused and not 0 < flow.max_in_flight < flow.in_flight",
        ),
        (
            "flows",
            "flow.paused or 0 < flow.max_in_flight <= flow.in_flight",
            "flow.paused or 0 < flow.max_in_flight < flow.in_flight",
        ),
    ),
    _mutant(
        "weight change not rescaled",
        "weights",
        (
            "admin",
            "meter_after = _rescaled(pool, flow, weight_before, weight_after)",
            "meter_after = meter",
        ),
    ),
    _mutant(
        "weight change not clamped",
        "weights",
        ("charge", "return min(scaled, max(residual, limit))", "return scaled"),
    ),
    _mutant(
        "rebase forgets the largest meter",
        "rebase",
        (
            "fold_config",
            "pool.largest_meter = max(pool.largest_meter - offset, 0)",
            "pool.largest_meter = 0",
        ),
    ),
    # Slack: both at once
    _mutant(
        "slack from charges",
        "slack_cost",
        (
            "selection",
            "slack = slack_for(rules, pool.recent_costs.largest)",
            "slack = slack_for(rules, pool.recent_charges.largest // 1_000_000)",
        ),
    ),
    _mutant(
        "passes without limit",
        "slack_window",
        ("selection", "if pool.passes >= pool.rules.max_passes:", "if False:"),
    ),
    _mutant(
        "passes never reset",
        "slack_window",
        ("granting", "            passes = 0\n", "            passes = pool.passes\n"),
    ),
    # Quota and aging: QBA §III-A
    _mutant(
        "debt cleared by an ordinary long",
        "qba_quota",
        (
            "granting",
            "    if rule is _PROMOTION:\n        return count, 0, debt, False",
            "    if request.predicted_class is not _SHORT:\n        return count, 0, debt, False",
        ),
    ),
    _mutant(
        "quota counted twice",
        "qba_prefill",
        ("lifecycle", "if request.counted or not (moves", "if not (moves"),
    ),
    _mutant(
        "counter past k",
        "qba_quota",
        (
            "granting",
            "if request.predicted_class is _SHORT and not debt:",
            "if request.predicted_class is _SHORT:",
        ),
    ),
    _mutant(
        "promotion by age alone",
        "qba_quota",
        (
            "selection",
            "elif pool.promotion_debt and not pool.promotion_under_way:",
            "elif not pool.promotion_under_way:",
        ),
    ),
    _mutant(
        "two promotions under way",
        "qba_prefill",
        (
            "selection",
            "elif pool.promotion_debt and not pool.promotion_under_way:",
            "elif pool.promotion_debt:",
        ),
    ),
    _mutant(
        "one counter for all users",
        "qba_debt_per_user",
        (
            "evolve",
            "holder = flow if pool.backlog.charged else pool\n    if grant.rule",
            "holder = pool\n    if grant.rule",
        ),
        (
            "granting",
            "holder = choice.flow if pool.backlog.charged else pool\n    count, debt, rules",
            "holder = pool\n    count, debt, rules",
        ),
    ),
    _mutant(
        "aged at theta itself",
        "qba_quota",
        (
            "selection",
            "aged_before = now_ns - threshold if",
            "aged_before = now_ns - threshold + 1 if",
        ),
    ),
    _mutant(
        "rank rounded down",
        "qba_quota",
        (
            "windows",
            "rank = (level_bp * len(ordered) + 9_999) // 10_000",
            "rank = max(level_bp * len(ordered) // 10_000, 1)",
        ),
    ),
    # Placement
    _mutant(
        "overtakes not counted",
        "overtaking",
        ("evolve", "pool.requests[request_id].overtakes += 1", "pass"),
    ),
    _mutant(
        "overtaking without reach",
        "overtaking",
        (
            "selection",
            "return frame.smallest + reach_of(pool.rules, frame.slack)",
            "return frame.smallest + 10**18",
        ),
    ),
    _mutant(
        "labels ignored",
        "fit",
        (
            "selection",
            "return not request.labels or set(request.labels) <= set(offer.labels)",
            "return True",
        ),
    ),
    _mutant(
        "tokens not lowered within a call",
        "fit",
        ("scheduler", "max(offer.free_tokens - tokens, 0)", "offer.free_tokens"),
    ),
    # Leases
    _mutant(
        "redelivery charged",
        "leases",
        (
            "granting",
            "if first and backlog.charged:",
            "if backlog.charged:",
        ),
        (
            "evolve",
            "    if turn is _REDELIVERY:\n",
            "    if turn is _REDELIVERY:\n        flow.meter = x.meter_after\n",
        ),
    ),
    _mutant(
        "redelivery after the selection",
        "leases",
        (
            "dispatch",
            "if pool.redelivery and pool.name",
            "if pool.redelivery and not pool.backlog.selectable and pool.name",
        ),
    ),
    _mutant(
        "redelivery newest first",
        "leases",
        (
            "dispatch",
            "for _, request_id in pool.redelivery:",
            "for _, request_id in reversed(pool.redelivery):",
        ),
    ),
    _mutant("stale lease accepted", "leases", ("lifecycle", _LATE, _STALE)),
    _mutant(
        "hand-over counted as a failure",
        "leases",
        ("lifecycle", _FAILURES, _FAILURES.replace("is d.LeaseEndCause.EXPIRED", "> 0")),
    ),
    _mutant(
        "give-back counted as a failure",
        "leases",
        (
            "lifecycle",
            _FAILURES,
            _FAILURES.replace("is d.LeaseEndCause.EXPIRED", "is not d.LeaseEndCause.HAND_OVER"),
        ),
    ),
    _mutant(
        "one attempt too many",
        "leases",
        (
            "lifecycle",
            "elif failures >= policy.max_attempts:",
            "elif failures > policy.max_attempts:",
        ),
    ),
    _mutant(
        "requeued with old attempts",
        "leases",
        ("evolve", "request.failures, request.attempts = 0, 0", "request.attempts = 1"),
    ),
    _mutant(
        "back-off ignored",
        "leases",
        ("dispatch", "worker == ask.worker and ask.now_ns < until_ns", "False"),
    ),
    _mutant(
        "downtime costs leases",
        "crash",
        ("fold_config", "        lease.expire_ns += x.downtime_ns\n", ""),
    ),
    # Limits
    _mutant(
        "expiry of leased requests",
        "waiting_limit",
        ("expiry", "        or request.state is not d.RequestState.WAITING\n", ""),
    ),
    _mutant(
        "the oldest is shed",
        "shedding",
        (
            "admission",
            "newest = pool.flows[victim].newest()",
            "newest = pool.flows[victim].oldest()",
        ),
    ),
    _mutant(
        "displacing others at one's own share",
        "shedding",
        ("admission", "if held < share_of(", "if held <= share_of("),
    ),
]
