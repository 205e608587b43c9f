"""The reserve of disk space."""

from scheduler_service.app.space import SpaceReserve


def test_space_is_low_below_the_reserve_and_enough_well_above_it():
    """The answer changes at the reserve, and back only at 125 % of it; each change is an event."""
    events = []
    reserve = SpaceReserve(1000, report=lambda event, **values: events.append((event, values)))
    seen = [reserve.update(free) for free in (5000, 1000, 999, 1000, 1249, 1250, 1000, 0)]

    assert seen == [False, False, True, True, True, False, False, True]
    assert reserve.low
    assert [event for event, _ in events] == [
        "log.space_low",
        "log.space_recovered",
        "log.space_low",
    ]
    assert events[0][1] == {"free_bytes": 999, "reserve_bytes": 1000}


def test_without_a_limit_or_a_reserve_space_is_never_low():
    """A store in memory has no limit, and a reserve of 0 asks for nothing."""
    assert not SpaceReserve(1000, report=print).update(-1)
    assert not SpaceReserve(0, report=print).update(0)
