"""SFQ §2.5, §3.4: the reset at global idle is safe, because nobody is left to protect."""

from hypothesis import given

from scheduler_service.core import decisions as d
from tests.support.driver import Driver
from tests.support.programs import LIVELY, SFQ, Player


class Periods:
    """What waits at every record, counted from the records alone."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.waiting: set[str] = set()
        self.level: list[int] = []

    def before(self, record: d.Decision) -> None:
        if isinstance(record, d.Accepted):
            self.waiting.add(record.request_id)
        elif isinstance(record, d.Dispatched | d.Ended):
            self.waiting.discard(record.request_id)
        elif isinstance(record, d.BusyPeriodClosed):
            assert not self.waiting, "a busy period closed while somebody waited"

    def after(self, record: d.Decision) -> None:
        pool = self.driver.replica.pools["pool"]
        if isinstance(record, d.BusyPeriodClosed):
            assert all(flow.meter <= pool.virtual_time for flow in pool.flows.values())
        if isinstance(record, d.Accepted) and len(self.waiting) == 1:
            assert record.meter_after == record.virtual_time, "a handicap survived the idle time"


@given(LIVELY)
def test_a_busy_period_closes_exactly_when_nothing_waits(program):
    """The reset cannot happen while anybody waits, and always happens when nobody does."""
    driver = Driver(SFQ)
    watch = Periods(driver)
    driver.watch(watch)
    Player(driver).play(program).drain()
    if driver.of(d.Accepted):
        assert not watch.waiting
        assert driver.of(d.BusyPeriodClosed)


@given(LIVELY)
def test_after_global_idle_all_start_from_one_baseline(program):
    """Whoever joins after the pool was empty starts at v, whatever it had been charged."""
    driver = Driver(SFQ)
    Player(driver).play(program).drain()
    for user in "abcd":
        driver.enqueue(f"new-{user}", user)
    meters = [record.meter_after for record in driver.of(d.Accepted)[-4:]]
    assert set(meters) == {driver.pool().virtual_time}


def test_live_leases_do_not_keep_a_busy_period_open():
    """Requests that run are not waiting: the period ends with the last dispatch (SFQ §5.3)."""
    driver = Driver(SFQ)
    driver.enqueue("a0", "a", 5)
    driver.next()
    assert [record.virtual_time_after for record in driver.of(d.BusyPeriodClosed)] == [5_000_000]
