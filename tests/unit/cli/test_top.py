"""`fairsched top` on narrow terminals: users and whole numbers come before bars."""

import io

import pytest
from rich.console import Console

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.cli import output, top

NAME = "organisation-17"


def look(at, charged):
    """Returns what one look at a busy pool finds."""
    user = pb.User(
        user_id=NAME,
        weight_milli=1500,
        waiting_count=1234,
        in_flight_count=123,
        oldest_wait={"seconds": 59},
        meter_micros=83_286_000_000,
        charged_cost=charged,
    )
    idle = pb.User(user_id="idle", meter_micros=5_000_000, charged_cost=charged)
    pool = pb.PoolStats(pool="default", waiting_count=1234, leased_count=123)
    pool.oldest_wait.FromSeconds(59)
    pool.virtual_time_micros = 41_086_000_000
    pool.fairness_gap_micros, pool.fairness_bound_micros = 10**9, 10**11
    return top.Sample(at, pb.ServiceStats(worker_count=4), pool, [user, idle])


@pytest.mark.parametrize(
    ("width", "numbers"),
    [
        (40, ["1234", "123", "50.0%"]),
        (60, ["1234", "123", "59.0 s", "42,200", "50.0%"]),
        (80, ["1.5", "1234", "123", "59.0 s", "42,200", "50.0%"]),
        (120, ["1.5", "1234", "123", "59.0 s", "42,200", "50.0%"]),
    ],
)
def test_what_fits_is_whole(monkeypatch, width, numbers):
    """No line is too long; every number that is shown is shown in full, and whose it is."""
    shown = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=shown, width=width, highlight=False))
    rates, last = top.Rates(), look(1.0, 500)
    rates.add(look(0.0, 100))
    rates.add(last)
    output.out.print(top.frame(last, rates, 25))
    lines = shown.getvalue().splitlines()
    (users,) = [line for line in lines if line.strip().startswith(NAME[:12])]
    (idle,) = [line for line in lines if line.strip().startswith("idle")]

    assert max(map(len, lines)) <= width
    for part in ("pool default", "1,234 waiting, oldest 59.0 s", "123 leased", "4 active workers"):
        assert any(part in line for line in lines), part
    assert len([line for line in lines[: lines.index(users)] if "leased" in line]) == 2
    assert "-" not in idle
    assert all(number in users for number in numbers)
    assert ("█" in users) == (width >= 80)
