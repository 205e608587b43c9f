"""What there is a million of is nothing that the garbage collector walks."""

import gc

import pytest

from scheduler_service.core import COMPILED
from tests.support.driver import POOL, Driver
from tests.support.programs import policy


def test_what_is_remembered_of_ended_requests_is_not_tracked():
    """Compiled or not: there are hundreds of thousands of them."""
    driver = Driver(policy("fair_qba"))
    driver.enqueue("a", "user", 5)
    driver.complete(driver.next()[0].lease_id)

    assert not gc.is_tracked(driver.state.pools[POOL].gone["a"])


@pytest.mark.skipif(not COMPILED, reason="from the source, classes are tracked")
def test_requests_leases_and_users_are_not_tracked():
    """A million waiting requests cost the collector nothing."""
    driver = Driver(policy("fair_qba"))
    driver.enqueue("a", "user", 5)
    driver.enqueue("b", "user", 5)
    driver.next()
    pool = driver.state.pools[POOL]
    request = pool.requests["a"]

    assert not any(map(gc.is_tracked, (request, request.lease, pool.flows["user"])))
