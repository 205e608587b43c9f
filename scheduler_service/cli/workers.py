"""Commands about workers: `fairsched workers …`."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.cli import output
from scheduler_service.cli.session import Session, remote
from scheduler_service.core.phrases import count_text

app = typer.Typer(help="Workers: list, drain.", no_args_is_help=True)


@app.command("list")
@remote
def list_workers(
    session: Session, pool: Annotated[str, typer.Option(help="Only those of this pool.")] = ""
) -> None:
    """Lists the workers that the service has heard of."""
    request = pb.ListWorkersRequest(pool=pool)
    found = session.client.pages(session.client.scheduler.ListWorkers, request, "workers")
    if session.json_or(found):
        return
    now = datetime.now(UTC)
    shown = output.table("worker", "state", ">leases", "pools", "labels", "endpoint", "=last seen")
    for worker in found:
        output.row(
            shown,
            worker.worker_id,
            output.short(pb.WorkerState.Name(worker.state), "WORKER_STATE_"),
            worker.lease_count,
            ", ".join(worker.pools),
            ", ".join(worker.offer.labels),
            worker.endpoint,
            _ago(now - worker.last_seen_time.ToDatetime(UTC)),
        )
    output.show(shown, "no worker was heard of")


@app.command("drain")
@remote
def drain_worker(
    session: Session,
    worker: Annotated[str, typer.Argument(help="Worker, or its session.", show_default=False)],
) -> None:
    """Stops new work for a worker; its leases go on.

    The Python client's workers end when their leases have. To undo it, start the worker again.
    """
    response = session.client.scheduler.DrainWorker(pb.DrainWorkerRequest(worker_id=worker))
    if not session.json_or([response]):
        left = count_text(response.worker.lease_count, "lease")
        output.out.print(output.safe(f"Worker {worker} is draining, {left} left."))


def _ago(length: timedelta) -> str:
    """Returns how long ago something was; "now" too when the clocks here and there differ."""
    return f"{output.span(length)} ago" if length >= timedelta(seconds=1) else "now"
