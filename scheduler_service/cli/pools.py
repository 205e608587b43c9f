"""Commands about pools: `fairsched pools …`, `pause`, `resume`."""

from typing import Annotated, Any

import typer
from google.protobuf.message import Message

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.cli import output, values
from scheduler_service.cli.session import Session, remote

app = typer.Typer(help="Pools: list, show, create, change, delete.", no_args_is_help=True)

PoolName = Annotated[str, typer.Argument(help="Pool.", show_default=False)]
Preset = Annotated[
    str | None,
    typer.Option(help="Starting point: fair_qba, sfq, qba, psf, aa or fcfs.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Policy field, as quota_k=4 or lease_duration=30s; repeat. "
        "Nothing behind = goes back to the preset's.",
        show_default=False,
    ),
]


@app.command("list")
@remote
def list_pools(session: Session) -> None:
    """Lists the pools."""
    pools = session.client.pages(session.client.admin.ListPools, pb.ListPoolsRequest(), "pools")
    if session.json_or(pools):
        return
    shown = output.table("pool", "preset", "mode", "slack", ">k", ">gamma", "paused")
    for pool in pools:
        policy = pool.policy
        output.row(
            shown,
            pool.pool,
            policy.preset,
            _enum_name(policy, "mode"),
            _slack(pool),
            policy.quota_k,
            f"{policy.aging_quantile_bp / 10_000:g}",
            paused(pool),
        )
    output.show(shown, "there is no pool")


@app.command("show")
@remote
def show_pool(session: Session, pool: PoolName) -> None:
    """Shows a pool's policy, every field of it."""
    response = session.client.admin.GetPool(pb.GetPoolRequest(pool=pool))
    if not session.json_or([response.pool]):
        _show(response.pool)


@app.command("create")
@remote
def create_pool(
    session: Session, pool: PoolName, preset: Preset = None, settings: Settings = None
) -> None:
    """Creates a pool; what is not stated is the preset's."""
    policy, _ = values.policy(preset, settings)
    response = session.client.admin.CreatePool(pb.CreatePoolRequest(pool=pool, policy=policy))
    if not session.json_or([response.pool]):
        _show(response.pool)


@app.command("update")
@remote
def update_pool(
    session: Session, pool: PoolName, preset: Preset = None, settings: Settings = None
) -> None:
    """Changes a pool's policy; acts at once on all that waits."""
    policy, mask = values.policy(preset, settings)
    request = pb.UpdatePoolRequest(pool=pool, policy=policy, update_mask=mask)
    response = session.client.admin.UpdatePool(request)
    if not session.json_or([response.pool]):
        _show(response.pool)


@app.command("delete")
@remote
def delete_pool(
    session: Session,
    pool: PoolName,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also while workers serve it, who are told so; requests in it still forbid it.",
        ),
    ] = False,
) -> None:
    """Deletes a pool that holds no request and is served by no worker."""
    response = session.client.admin.DeletePool(pb.DeletePoolRequest(pool=pool, force=force))
    if not session.json_or([response]):
        output.out.print(output.safe(f"Pool {pool} is deleted."))


@remote
def pause(
    session: Session,
    pool: PoolName,
    user: Annotated[
        str, typer.Argument(help="Only this user of the pool.", show_default=False)
    ] = "",
    for_: Annotated[
        str | None,
        typer.Option("--for", help="End by itself after this time, as 10m.", show_default=False),
    ] = None,
) -> None:
    """Stops dispatching from a pool, or from one user of it; leases go on."""
    length = values.duration(for_) if for_ else None
    request = pb.PauseRequest(pool=pool, user_id=user, duration=length)
    response = session.client.admin.Pause(request)
    if not session.json_or([response]):
        until = f" until {_time(response.pause)}" if response.pause.HasField("until_time") else ""
        output.out.print(output.safe(f"{_subject(pool, user)} is paused{until}."))


@remote
def resume(
    session: Session,
    pool: PoolName,
    user: Annotated[
        str, typer.Argument(help="Only this user of the pool.", show_default=False)
    ] = "",
) -> None:
    """Ends a pause."""
    response = session.client.admin.Resume(pb.ResumeRequest(pool=pool, user_id=user))
    if not session.json_or([response]):
        said = "was not paused" if response.duplicate else "goes on"
        output.out.print(output.safe(f"{_subject(pool, user)} {said}."))


def paused(holder: pb.Pool | pb.PoolStats | pb.User) -> str:
    """Returns until when something is paused, for a table."""
    if not holder.HasField("pause"):
        return ""
    return f"until {_time(holder.pause)}" if holder.pause.HasField("until_time") else "yes"


def _time(pause_info: pb.PauseInfo) -> str:
    return pause_info.until_time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S UTC")


def _subject(pool: str, user: str) -> str:
    return f"User {user} of pool {pool}" if user else f"Pool {pool}"


def _enum_name(message: Message, field: str) -> str:
    kind: Any = message.DESCRIPTOR.fields_by_name[field].enum_type
    number = getattr(message, field)
    prefix = kind.values_by_number[0].name.removesuffix("UNSPECIFIED")
    entry = kind.values_by_number.get(number)
    return output.short(entry.name, prefix) if entry else str(number)


def _slack(pool: pb.Pool) -> str:
    policy = pool.policy
    match _enum_name(policy, "slack_kind"):
        case "relative":
            return f"{policy.slack_milli / 1000:g} x largest cost"
        case "absolute":
            return f"{output.units(policy.slack_micros)} units"
        case other:
            return other


def _show(pool: pb.Pool) -> None:
    pairs: list[tuple[str, object]] = [("pool", pool.pool)]
    for name, value in output.plain(pool.policy).items():
        field = pool.policy.DESCRIPTOR.fields_by_name[name]
        shown: object = value
        if field.enum_type is not None:
            shown = _enum_name(pool.policy, name)
        elif field.message_type is not None:
            shown = output.span(value)
        pairs.append((name, shown))
    pairs += [("policy digest", pool.policy_digest), ("paused", paused(pool) or "no")]
    output.facts(pairs)
