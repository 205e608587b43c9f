"""Page tokens belong to the list that gave them."""

import pytest

from scheduler_service.rpc.paging import number_of, place_of, token_of
from scheduler_service.rpc.validate import Checks


@pytest.mark.parametrize("place", ["a", "Ünï/ çødé", "🐍", "x" * 256, "a:b|c"])
def test_round_trip(place):
    """A token stands for the place it was made of."""
    checks = Checks()

    assert place_of(token_of("users of p", place), "users of p", checks) == place
    assert place_of("", "users of p", checks) == ""
    assert checks.violations == []


@pytest.mark.parametrize(
    "token", [token_of("users of q", "a"), "junk!", "////", "é", token_of("users of p", "")]
)
def test_others_are_refused(token):
    """A token of another list, or none at all, is a bad field."""
    checks = Checks()
    place_of(token, "users of p", checks)

    assert [field for field, _ in checks.violations] == ["page_token"]


def test_numbers():
    """A numbered list refuses a place that is no number."""
    checks = Checks()

    assert number_of(token_of("n", "17"), "n", checks) == 17
    assert checks.violations == []
    number_of(token_of("n", "x17"), "n", checks)
    number_of(token_of("n", "-1"), "n", checks)
    assert len(checks.violations) == 2
