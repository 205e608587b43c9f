"""For how long users were held back: by whichever of the things that can."""

from scheduler_service.core.outlook import WaitCause
from tests.support.watched import SMALL, Watched


async def test_a_cap_of_the_pool_holds_users_back(rig):
    """Also where no user has settings of its own."""
    watched = Watched(rig, max_in_flight_per_user=1)
    watched.enqueue("first", 5)
    assert watched.ask(SMALL) == ["first"]
    watched.enqueue("second", 5)
    watched.pass_time(3)

    assert watched.seconds("second") == {WaitCause.USER_CAP: 3}
