"""Commands that show the state: `stats` and `dump`."""

from enum import StrEnum
from typing import Annotated

import typer

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.cli import output
from scheduler_service.cli.pools import PoolName, paused
from scheduler_service.cli.requests import state_name
from scheduler_service.cli.session import Session, remote
from scheduler_service.core.phrases import count_text


class Level(StrEnum):
    """How deep a dump goes."""

    POOL = "pool"
    USER = "user"
    REQUEST = "request"


@remote
def stats(
    session: Session,
    pool: Annotated[str, typer.Argument(help="Only this pool.", show_default=False)] = "",
) -> None:
    """Shows counts, and the fairness gap of every pool against its bound."""
    request = pb.GetStatsRequest(pool=pool)
    responses = [session.client.admin.GetStats(request)]
    while responses[-1].next_page_token:
        request.page_token = responses[-1].next_page_token
        responses.append(session.client.admin.GetStats(request))
    if session.json_or(responses):
        return
    _show_service(responses[0].service)
    found = [one for response in responses for one in response.pools]
    output.out.print()
    if len(found) == 1:
        _show_pool(found[0])
    else:
        _list_pools(found)
    output.out.print(
        "\ngap: largest minus smallest meter of the users whose turn it may be, in cost units; "
        "it never exceeds the bound",
        style="dim",
    )


@remote
def dump(
    session: Session,
    pool: PoolName,
    level: Annotated[Level, typer.Option(help="How deep.")] = Level.USER,
) -> None:
    """Dumps a pool's state as JSON lines, each page exact at its own sequence."""
    request = pb.DumpStateRequest(
        pool=pool, level=pb.DumpLevel.Value(f"DUMP_LEVEL_{level.value.upper()}"), page_size=1000
    )
    while True:
        response = session.client.admin.DumpState(request)
        output.print_json([response])
        if not response.next_page_token:
            return
        request.page_token = response.next_page_token


def _show_service(service: pb.ServiceStats) -> None:
    start = service.start_time.ToJsonString()
    broken = service.invariant_violation_count
    output.facts(
        [
            ("version", f"{service.version} (algorithm {service.algorithm_version})"),
            ("serving since", start),
            ("durability", service.durability),
            ("log", f"sequence {service.log.oldest_sequence} to {service.log.newest_sequence}"),
            ("log head", service.log.newest_hash.hex()),
            ("log size", f"{service.log_bytes / 2**20:,.1f} MiB"),
            ("free disk", f"{service.free_bytes / 2**30:,.1f} GiB"),
            ("active workers", service.worker_count),
            ("waiting calls", service.parked_call_count),
            ("streams", service.stream_count),
            ("fairness violations", f"{broken} - a defect, please report" if broken else "none"),
        ]
    )


def _list_pools(pools: list[pb.PoolStats]) -> None:
    shown = output.table(
        "pool", ">waiting", ">leased", ">oldest", ">gap of bound", ">dispatched", "paused"
    )
    for one in pools:
        output.row(
            shown,
            one.pool,
            one.waiting_count,
            one.leased_count,
            _oldest(one),
            _gap(one),
            one.counters.dispatched_count,
            paused(one),
        )
    output.show(shown, "there is no pool")


def _show_pool(one: pb.PoolStats) -> None:
    theta = one.aging_threshold.ToTimedelta() if one.HasField("aging_threshold") else None
    sample = f"({count_text(one.aging_sample_size, 'wait')} in the sample)"
    compared = one.estimator.compared_count
    error = f"{one.estimator.used_cost / one.estimator.estimated_cost:.3f}" if compared else "?"
    ended = {state_name(count.state): count.count for count in one.counters.ended}
    pairs: list[tuple[str, object]] = [
        ("pool", one.pool),
        ("paused", paused(one) or "no"),
        ("waiting", f"{one.waiting_count:,}, oldest {_oldest(one)}"),
        ("users", f"{one.user_count:,}, {one.selectable_user_count:,} of them may be next"),
        ("leased", f"{one.leased_count:,} ({count_text(one.in_flight_cost, 'cost unit')})"),
        ("due for redelivery", one.redelivery_count),
        ("dead letters", one.dead_letter_count),
        ("gap of bound", _gap(one)),
        ("virtual time", output.units(one.virtual_time_micros)),
        ("aging threshold", f"{output.span(theta)} {sample}" if theta else f"none yet {sample}"),
        (
            "short cutoff",
            count_text(one.short_cutoff, "token") if one.short_cutoff else "not learned",
        ),
        ("output of cap", f"{one.output_ratio_milli / 1000:.3f}"),
        ("used of estimated", f"{error} over {count_text(compared, 'request')}"),
        ("accepted", f"{one.counters.accepted_count:,}"),
        ("dispatched", f"{one.counters.dispatched_count:,}"),
        ("charged", count_text(one.counters.charged_cost, "cost unit")),
        ("promoted", f"{one.counters.promoted_count:,}"),
        ("redelivered", f"{one.counters.redelivered_count:,}"),
        *((f"ended {name}", f"{count:,}") for name, count in ended.items()),
        *((f"refused {r.reason}", f"{r.count:,}") for r in one.counters.rejected),
    ]
    output.facts(pairs)


def _oldest(one: pb.PoolStats) -> str:
    return output.span(one.oldest_wait.ToTimedelta()) if one.HasField("oldest_wait") else "none"


def _gap(one: pb.PoolStats) -> str:
    if not one.HasField("fairness_bound_micros"):
        return "unbounded"
    gap, bound = one.fairness_gap_micros, one.fairness_bound_micros
    return f"{output.units(gap)} of {output.units(bound)}"
