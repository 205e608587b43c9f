"""Commands that show the state: `stats` and `dump`."""

from enum import StrEnum
from typing import Annotated

import typer

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.cli import output
from scheduler_service.cli.pools import PoolName, paused
from scheduler_service.cli.session import Session, remote


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
    shown = output.table(
        "pool", ">users", ">waiting", ">leased", ">redelivery", ">dead", ">oldest",
        ">gap", ">bound", ">theta", ">dispatched", ">charged", "paused",
    )  # fmt: skip
    for response in responses:
        for one in response.pools:
            output.row(shown, *_pool_cells(one))
    output.out.print(shown)
    output.out.print(
        "gap: largest minus smallest meter of the users whose turn it may be, in cost units; "
        "it never exceeds the bound.",
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
            ("live workers", service.worker_count),
            ("waiting calls", service.parked_call_count),
            ("streams", service.stream_count),
            ("fairness violations", f"{broken} - a defect, please report" if broken else "none"),
        ]
    )


def _pool_cells(one: pb.PoolStats) -> list[object]:
    has_bound = one.HasField("fairness_bound_micros")
    theta = one.aging_threshold.ToTimedelta() if one.HasField("aging_threshold") else None
    return [
        one.pool,
        one.user_count,
        one.waiting_count,
        one.leased_count,
        one.redelivery_count,
        one.dead_letter_count,
        output.span(one.oldest_wait.ToTimedelta()) if one.HasField("oldest_wait") else "",
        output.units(one.fairness_gap_micros) if has_bound else "",
        output.units(one.fairness_bound_micros) if has_bound else "unbounded",
        "" if theta is None else output.span(theta),
        one.counters.dispatched_count,
        f"{one.counters.charged_cost:,}",
        paused(one),
    ]
