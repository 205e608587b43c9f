"""Commands about users: `fairsched users …` and `weight`."""

from typing import Annotated

import typer

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.cli import output, values
from scheduler_service.cli.pools import PoolName, paused
from scheduler_service.cli.session import Session, remote
from scheduler_service.core.phrases import count_text

app = typer.Typer(help="Users of a pool: list, show, set, forget.", no_args_is_help=True)

UserId = Annotated[str, typer.Argument(help="User.", show_default=False)]


@app.command("list")
@remote
def list_users(
    session: Session,
    pool: PoolName,
    busy: Annotated[
        bool, typer.Option(help="Only those with something waiting or leased.")
    ] = False,
) -> None:
    """Lists the users of a pool that have state or settings."""
    request = pb.ListUsersRequest(pool=pool, only_busy=busy)
    found = session.client.pages(session.client.admin.ListUsers, request, "users")
    if session.json_or(found):
        return
    shown = output.table(
        "user", ">weight", ">cap", ">meter", ">waiting", ">leased", ">oldest",
        ">done", ">charged", "paused",
    )  # fmt: skip
    for user in found:
        output.row(
            shown,
            user.user_id,
            output.weight(user.weight_milli),
            user.max_in_flight or "",
            output.units(user.meter_micros),
            user.waiting_count,
            user.in_flight_count,
            output.span(user.oldest_wait.ToTimedelta()) if user.HasField("oldest_wait") else "",
            user.dispatched_count,
            f"{user.charged_cost:,}",
            paused(user),
        )
    output.show(shown, "nobody is busy" if busy else "no user has state or settings")


@app.command("show")
@remote
def show_user(session: Session, pool: PoolName, user: UserId) -> None:
    """Shows a user."""
    response = session.client.admin.GetUser(pb.GetUserRequest(pool=pool, user_id=user))
    if not session.json_or([response.user]):
        _show(response.user)


@app.command("set")
@remote
def set_user(
    session: Session,
    pool: PoolName,
    user: UserId,
    weight: Annotated[
        str | None,
        typer.Option(help="Weight, 0.001 to 1000; 0 goes back to the pool's.", show_default=False),
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            help="Leased requests at once; 0 is no cap, -1 goes back to the pool's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Sets a user's weight and cap; acts at once on what waits."""
    request = pb.SetUserRequest(pool=pool, user_id=user, max_in_flight=max_in_flight)
    if weight is not None:
        request.weight_milli = values.weight_milli(weight)
    response = session.client.admin.SetUser(request)
    if not session.json_or([response.user]):
        if weight is not None:
            _say_weight(response.user, back=not request.weight_milli)
        _show(response.user)


@app.command("forget")
@remote
def forget_user(session: Session, pool: PoolName, user: UserId) -> None:
    """Deletes a user's settings, and what was learned about it."""
    response = session.client.admin.ForgetUser(pb.ForgetUserRequest(pool=pool, user_id=user))
    if not session.json_or([response]):
        output.out.print(output.safe(f"User {user} of pool {pool} is forgotten."))


@remote
def set_weight(
    session: Session,
    pool: PoolName,
    user: UserId,
    weight: Annotated[str, typer.Argument(help="0.001 to 1000; 0 goes back to the pool's.")],
) -> None:
    """Sets a user's weight: its share of cost against the others'."""
    request = pb.SetUserRequest(pool=pool, user_id=user, weight_milli=values.weight_milli(weight))
    response = session.client.admin.SetUser(request)
    if not session.json_or([response.user]):
        _say_weight(response.user, back=not request.weight_milli)
        _show(response.user)


def _say_weight(user: pb.User, *, back: bool) -> None:
    """Says what a weight now is; `back`: none of its own was stated."""
    now = output.weight(user.weight_milli)
    said = f"is back to the default, {now}" if back else f"is now {now}"
    output.out.print(output.safe(f"The weight of user {user.user_id} {said}."), style="bold")


def _show(user: pb.User) -> None:
    oldest = output.span(user.oldest_wait.ToTimedelta()) if user.HasField("oldest_wait") else ""
    own = "its own" if user.configured else "the pool's"
    output.facts(
        [
            ("user", user.user_id),
            ("pool", user.pool),
            ("weight", f"{output.weight(user.weight_milli)} ({own})"),
            ("cap in flight", user.max_in_flight or "none"),
            ("paused", paused(user) or "no"),
            ("meter", f"{output.units(user.meter_micros)} units"),
            ("waiting", user.waiting_count),
            ("oldest wait", oldest),
            ("in flight", user.in_flight_count),
            ("short admissions", user.short_admission_count),
            ("promotion owed", "yes" if user.promotion_debt else "no"),
            ("dispatched since start", user.dispatched_count),
            ("charged since start", count_text(user.charged_cost, "unit")),
            ("really used since start", count_text(user.used_cost, "unit")),
        ]
    )
