"""SFQ §3.1: the band invariant of the meters, property by property.

At slack 0 the width of the band is the largest charge; `test_bound.py` has it for any slack.
"""

from hypothesis import given

from scheduler_service.core import decisions as d
from tests.support.driver import Driver
from tests.support.programs import LIVELY, SFQ, Player


class Seen:
    """The core's own meters after every record, and the largest charge so far."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.charge_max = 0
        self.virtual_times: list[int] = []
        self.above: list[bool] = []
        self.below: list[bool] = []

    def before(self, record: d.Decision) -> None:
        if isinstance(record, d.Dispatched):
            self.charge_max = max(self.charge_max, record.charge_micros)

    def after(self, record: d.Decision) -> None:
        pool = self.driver.replica.pools["pool"]
        flows = pool.flows.values()
        limit = pool.virtual_time + self.charge_max
        self.virtual_times.append(pool.virtual_time)
        self.above.append(any(flow.meter > limit for flow in flows))
        self.below.append(any(flow.waiting and flow.meter < pool.virtual_time for flow in flows))


def watched(program) -> Seen:
    driver = Driver(SFQ)
    seen = Seen(driver)
    driver.watch(seen)
    Player(driver).play(program).drain()
    return seen


@given(LIVELY)
def test_1_virtual_time_never_decreases(program):
    """The virtual time is monotonically non-decreasing."""
    times = watched(program).virtual_times
    assert times == sorted(times)


@given(LIVELY)
def test_2_no_meter_is_above_v_plus_c_max(program):
    """For every user, S <= v + c_max."""
    assert not any(watched(program).above)


@given(LIVELY)
def test_3_no_waiting_user_is_below_v(program):
    """For every waiting user, S >= v."""
    assert not any(watched(program).below)
