"""Lease ids that somebody made up: found by their end, and refused by the rest."""

import pytest

from scheduler_service.core import answers as a
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import Unknown
from scheduler_service.core.request import sequence_of
from tests.support.driver import Driver
from tests.support.programs import SFQ


def _forged(lease_id: str) -> list[str]:
    nonce, _, digits = lease_id.rpartition("-")
    return [
        f"zz-{digits}",
        f"-{digits}",
        digits,
        f"{nonce}-0{digits}",
        f"{nonce}-{''.join(chr(0xFF10 + int(digit)) for digit in digits)}",  # full-width ones
        f"{nonce}-{'9' * 20}",
        f"{nonce}-{'9' * 250}",
        f"{nonce}-",
        "",
    ]


@pytest.fixture
def ended() -> tuple[Driver, str, str]:
    """A lease that ended with its request, and one that was given back."""
    driver = Driver(SFQ)
    driver.enqueue("done", "a")
    driver.enqueue("back", "a")
    done, back = driver.next(2)
    driver.complete(done.lease_id)
    driver.complete(back.lease_id, d.Outcome.GIVEN_BACK)
    return driver, done.lease_id, back.lease_id


def test_ended_leases_are_known_by_their_whole_id(ended):
    """What was forged is no lease at all, whatever it is asked for."""
    driver, *lease_ids = ended
    before = len(driver.log)
    for lease_id in lease_ids:
        assert driver.complete(lease_id, d.Outcome.GIVEN_BACK).existing is a.Existing.REPEATED
        for forged in _forged(lease_id):
            with pytest.raises(Unknown) as refused:
                driver.complete(forged)
            assert refused.value.reason == "LEASE_UNKNOWN"
            (renewed,) = driver.renew(forged)
            assert renewed.problem == "LEASE_UNKNOWN"

    assert len(driver.log) == before


@pytest.mark.parametrize(
    ("lease_id", "sequence"),
    [("abc-42", 42), ("a-b-7", 7), ("42", 42), ("abc", -1), ("abc-", -1), ("", -1), ("a-1_0", -1)],
)
def test_an_id_ends_with_its_sequence(lease_id, sequence):
    """Digits after the last dash."""
    assert sequence_of(lease_id) == sequence
