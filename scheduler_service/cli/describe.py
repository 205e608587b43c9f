"""One decision in one line, for `tail`."""

from rich.text import Text

from fairsched.v1 import decision_pb2 as pb
from scheduler_service.cli import output
from scheduler_service.cli.requests import class_name, state_name
from scheduler_service.core.phrases import count_text

_STYLES = {
    pb.DECISION_KIND_DISPATCHED: "green",
    pb.DECISION_KIND_LEASE_ENDED: "yellow",
    pb.DECISION_KIND_ENDED: "red",
    pb.DECISION_KIND_DEAD_LETTER_DROPPED: "red",
    pb.DECISION_KIND_POOL_CONFIGURED: "cyan",
    pb.DECISION_KIND_USER_CONFIGURED: "cyan",
    pb.DECISION_KIND_PAUSED: "cyan",
    pb.DECISION_KIND_RESUMED: "cyan",
}


def line(decision: pb.Decision) -> Text:
    """Returns a decision as one line: sequence, time, kind, whom it concerns, the numbers."""
    kind = output.short(_kind(decision.kind), "DECISION_KIND_")
    text = Text()
    text.append(f"{decision.sequence:>8} ", style="dim")
    text.append(decision.time.ToDatetime().strftime("%H:%M:%S.%f")[:-3] + " ", style="dim")
    text.append(f"{kind:<18} ", style=_STYLES.get(decision.kind, ""))
    concerned = "/".join(p for p in (decision.pool, decision.user_id, decision.request_id) if p)
    text.append_text(output.safe(concerned))
    numbers = _numbers(decision)
    if numbers:
        text.append("  ")
        text.append_text(output.safe(numbers))
    return text


def _kind(kind: pb.DecisionKind.ValueType) -> str:
    try:
        return pb.DecisionKind.Name(kind)
    except ValueError:
        return f"KIND_{kind}"


def _numbers(decision: pb.Decision) -> str:
    match decision.WhichOneof("details"):
        case "dispatched":
            return _dispatched(decision.dispatched)
        case "accepted":
            accepted = decision.accepted
            rejoined = " rejoined" if accepted.rejoined else ""
            return (
                f"cost {accepted.cost} {class_name(accepted.predicted_class)}"
                f" S={output.units(accepted.meter_after_micros)}{rejoined}"
            )
        case "completed":
            return _completed(decision.completed)
        case "ended":
            return f"{state_name(decision.ended.state)} {decision.ended.reason}"
        case "lease_ended":
            ended = decision.lease_ended
            cause = output.short(pb.LeaseEndCause.Name(ended.cause), "LEASE_END_CAUSE_")
            return f"{cause} by {ended.worker} {ended.error}".strip()
        case "user_configured":
            changed = decision.user_configured
            return f"weight {output.weight(changed.weight_milli)} cap {changed.max_in_flight}"
        case "pool_configured":
            return f"policy {decision.pool_configured.policy_digest}"
        case "busy_period_closed":
            closed = decision.busy_period_closed
            return f"v={output.units(closed.virtual_time_after_micros)}"
        case "worker_seen":
            seen = decision.worker_seen
            return f"{seen.worker_id} serves {', '.join(seen.pools)}"
        case "recovered":
            return f"after {output.span(decision.recovered.downtime.ToTimedelta())}"
        case _:
            return ""


def _completed(completed: pb.Completed) -> str:
    used = []
    if completed.HasField("prompt_tokens"):
        used.append(f"prompt {completed.prompt_tokens}")
    if completed.HasField("output_tokens"):
        used.append(f"output {completed.output_tokens}")
    return " ".join([state_name(completed.state), *used, completed.error]).strip()


def _dispatched(dispatched: pb.Dispatched) -> str:
    rule = output.short(pb.Rule.Name(dispatched.rule), "RULE_")
    turn = output.short(pb.Turn.Name(dispatched.turn), "TURN_")
    wait = output.span(dispatched.wait.ToTimedelta())
    return (
        f"{rule}, {turn}: waited {wait}, charge {output.units(dispatched.charge_micros)},"
        f" S={output.units(dispatched.meter_before_micros)}"
        f"->{output.units(dispatched.meter_after_micros)}"
        f" v={output.units(dispatched.virtual_time_after_micros)}"
        f" of {count_text(dispatched.users_waiting, 'user')}"
    )
