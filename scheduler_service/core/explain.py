"""Why something was decided, in words and numbers, from its record alone.

A dispatch record holds every input of its decision, so nothing else is read: not the state, not the
records around it.  Only what the worker of a session is called stands elsewhere; the caller may
state it.  The first sentence says what happened, the following ones why; the facts are the numbers
behind them, under the names the API has for them.

Meters and charges are shown in cost units, waits in seconds.
"""

from typing import Final

from scheduler_service.core import decisions as d
from scheduler_service.core.explain_others import others
from scheduler_service.core.phrases import (
    Explanation,
    Fact,
    cost_text,
    count_text,
    seconds_value,
    time_text,
    worker_text,
)
from scheduler_service.core.policy import PredictedClass

_MICROS: Final = "micro cost units"


def explain(decision: d.Decision, worker_name: str = "") -> Explanation:
    """Returns why `decision` was taken.

    Args:
        decision: The decision.
        worker_name: Own id of the worker it concerns; empty if that is not known, or there is none.
    """
    if isinstance(decision, d.Dispatched):
        return _dispatched(decision, worker_name)
    return others(decision, worker_name)


def _dispatched(x: d.Dispatched, worker_name: str) -> Explanation:
    sentences = (
        _what(x, worker_name),
        _why_turn(x),
        _why_rule(x),
        _window(x),
        _passed(x),
        _charge(x),
        _quota(x),
    )
    said = tuple(sentence for sentence in sentences if sentence)
    facts = _dispatch_facts(x)
    if x.worker:
        facts += (Fact("worker_id", worker_name or x.worker), Fact("worker", x.worker))
    return Explanation(said, facts, (x.request_sequence,))


def _what(x: d.Dispatched, worker_name: str) -> str:
    to = f"to worker {worker_text(x.worker, worker_name)}" if x.worker else "through the gate"
    kind = "short" if x.predicted_class is PredictedClass.SHORT else "long"
    return (
        f"Request {x.request_id!r} of user {x.user_id!r} (predicted {kind}, cost {x.cost:,}) went "
        f"{to}, {time_text(x.wait_ns)} after it was accepted; {count_text(x.users_waiting, 'user')}"
        " could have been next."
    )


def _why_turn(x: d.Dispatched) -> str:
    if x.turn is d.Turn.REDELIVERY:
        return (
            f"Its lease before this one was lost (this is attempt {x.attempt}); it had paid for "
            "its turn, so it went before any selection."
        )
    if x.turn is d.Turn.RESERVED:
        return "It had been overtaken too often, so this worker was kept for it until it fitted."
    if x.turn is d.Turn.OVERTAKE:
        return (
            f"What came first did not fit the worker ({count_text(len(x.overtook), 'request')}: "
            f"{_some(x.overtook)}); this was the next in order that did."
        )
    if x.turn is d.Turn.MAX_PASSES:
        return (
            "Its user had the smallest meter and had been passed by as many dispatches in a row as "
            "the policy allows, so its turn came whatever the class order says."
        )
    if x.slack_micros < 0:
        return "The slack is unbounded: the class order alone decided, over the requests of all."
    if x.meter_before == x.virtual_time_after:
        return f"Its user had the smallest meter of all, {cost_text(x.meter_before)}."
    return (
        f"Its user's meter, {cost_text(x.meter_before)}, was within the slack of the smallest, "
        f"{cost_text(x.virtual_time_after)}, so the class order decided."
    )


def _why_rule(x: d.Dispatched) -> str:
    if x.turn is d.Turn.REDELIVERY:
        return ""
    waited = (
        f"it had waited {time_text(x.wait_ns)}, longer than the aging threshold of "
        f"{time_text(max(x.aging_threshold_ns, 0))}"
    )
    if x.rule is d.Rule.PROMOTION:
        earned = count_text(x.short_admission_count_before, "short admission")
        return (
            f"It was promoted: {waited}, and {earned} had earned a predicted-long request its turn."
        )
    if x.rule is d.Rule.AGED:
        return f"It is aged: {waited}; in this class order aged predicted-long requests go first."
    if x.turn is d.Turn.OVERTAKE:
        kind = x.predicted_class.name.lower()
        return f"It is the oldest predicted-{kind} request of its user."
    if x.rule is d.Rule.SHORT_FIRST:
        return "It was the oldest predicted-short candidate, and these go first."
    if x.rule is d.Rule.LONG:
        text = "It was the oldest predicted-long candidate, and no predicted-short one was there"
        return text + ("; that is no promotion, whatever its age." if x.aged else ".")
    return "It was the oldest candidate, whatever its class."


def _window(x: d.Dispatched) -> str:
    if x.slack_micros < 0 or x.turn is d.Turn.REDELIVERY:
        return ""
    edge = x.virtual_time_after + x.slack_micros
    text = (
        f"The slack was {cost_text(x.slack_micros)}: users with a meter up to {cost_text(edge)} "
        "were eligible"
    )
    if x.meter_before > edge:
        text += f"; its user was {cost_text(x.meter_before - edge)} past that"
    return text + "."


def _passed(x: d.Dispatched) -> str:
    if not x.runner_up:
        return ""
    distance = x.runner_up_meter - x.meter_before
    if distance >= 0:
        above = cost_text(distance)
        return f"The next smallest meter was that of {x.runner_up!r}, {above} above its user's."
    text = f"{x.runner_up!r} had the smallest meter, {cost_text(-distance)} below its user's"
    if x.passes_after:
        text += f", and has been passed {count_text(x.passes_after, 'time')} in a row now"
    return text + "."


def _charge(x: d.Dispatched) -> str:
    if x.turn is d.Turn.REDELIVERY:
        return "Nothing was charged: a request pays once, at its first dispatch."
    if x.slack_micros < 0:
        return "Nothing was charged: with unbounded slack no meter moves."
    return (
        f"Its user was charged {cost_text(x.charge_micros)} (cost {x.cost:,} at weight "
        f"{x.weight_milli / 1000:g}); its meter went from {cost_text(x.meter_before)} to "
        f"{cost_text(x.meter_after)}, virtual time from {cost_text(x.virtual_time_before)} to "
        f"{cost_text(x.virtual_time_after)}."
    )


def _quota(x: d.Dispatched) -> str:
    before, after = x.short_admission_count_before, x.short_admission_count_after
    owner = "the pool" if x.slack_micros < 0 else "its user"
    if x.promotion_debt_after and not x.promotion_debt_before:
        return f"With this, {after} short admissions of {owner} have earned a promotion."
    if x.promotion_debt_before and not x.promotion_debt_after:
        return f"The promotion that was owed to {owner} is paid."
    if after != before:
        return f"It counted as short admission {after} of {owner}."
    if x.promotion_debt_before and x.rule is not d.Rule.PROMOTION:
        return f"A promotion stays owed to {owner}."
    return ""


def _dispatch_facts(x: d.Dispatched) -> tuple[Fact, ...]:
    facts = [
        Fact("turn", x.turn.name),
        Fact("rule", x.rule.name),
        Fact("wait", seconds_value(x.wait_ns), "s"),
        Fact("aged", str(x.aged).lower()),
        Fact("cost", str(x.cost), "cost units"),
        Fact("weight_milli", str(x.weight_milli), "thousandths"),
        Fact("charge_micros", str(x.charge_micros), _MICROS),
        Fact("meter_before_micros", str(x.meter_before), _MICROS),
        Fact("meter_after_micros", str(x.meter_after), _MICROS),
        Fact("virtual_time_before_micros", str(x.virtual_time_before), _MICROS),
        Fact("virtual_time_after_micros", str(x.virtual_time_after), _MICROS),
        Fact("short_admission_count_before", str(x.short_admission_count_before)),
        Fact("short_admission_count_after", str(x.short_admission_count_after)),
        Fact("promotion_debt_before", str(x.promotion_debt_before).lower()),
        Fact("promotion_debt_after", str(x.promotion_debt_after).lower()),
        Fact("passes_after", str(x.passes_after)),
        Fact("users_waiting", str(x.users_waiting)),
        Fact("attempt", str(x.attempt)),
        Fact("policy_digest", x.policy_digest),
    ]
    if x.slack_micros >= 0 and x.turn is not d.Turn.REDELIVERY:
        facts.insert(3, Fact("slack_micros", str(x.slack_micros), _MICROS))
    if x.aging_threshold_ns >= 0:
        facts.insert(3, Fact("aging_threshold", seconds_value(x.aging_threshold_ns), "s"))
    if x.runner_up:
        facts.append(Fact("runner_up", x.runner_up))
        facts.append(Fact("runner_up_meter_micros", str(x.runner_up_meter), _MICROS))
    if x.overtook:
        facts.append(Fact("overtook", ", ".join(x.overtook)))
    return tuple(facts)


def _some(names: tuple[str, ...], limit: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
