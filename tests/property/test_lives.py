"""Every accepted request ends exactly once, whatever is done to it and in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from tests.support import watches
from tests.support.driver import Driver
from tests.support.traces import Trace

GONE = d.Offer(labels=("lora",))


def wind_up(trace: Trace) -> watches.Lives:
    """Lifts every hold and serves or cancels all that is left."""
    driver = trace.driver
    lives = next(watch for watch in driver.watches if isinstance(watch, watches.Lives))
    for _pool, request_id in sorted(lives.alive):
        for pool in trace.pools:
            driver.attempt(driver.make(c.Cancel, pool=pool, request_id=request_id))
    driver.advance(10 * 86_400)
    return lives


@given(st.integers(0, 2**32))
def test_every_accepted_request_ends_exactly_once(seed):
    """After everything was let go, nothing is left and nothing ended twice."""
    driver = Driver()
    driver.watch(watches.Lives(driver))
    trace = Trace(seed, driver=driver)
    trace.run()
    lives = wind_up(trace)
    requeued = len(driver.of(d.Requeued))
    assert not lives.alive
    assert not lives.leases
    assert lives.ended == len(driver.of(d.Accepted)) + requeued


@given(st.integers(0, 2**32))
def test_counts_follow_from_the_log(seed):
    """Waiting and leased as the state has them are those of the records, after every command."""
    driver = Driver()
    lives = watches.Lives(driver)
    driver.watch(lives)
    Trace(seed, driver=driver).run()
    requests = [
        request for pool in driver.state.pools.values() for request in pool.requests.values()
    ]
    assert len(requests) == len(lives.alive)
    leased = [request for request in requests if request.state is d.RequestState.LEASED]
    assert len(leased) == len(lives.leases)
