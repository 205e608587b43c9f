"""The fluid ideal and the bound, against closed forms and hand-made runs."""

from pathlib import Path

import pytest

from scheduler_service.demo import arrivals
from scheduler_service.sim.bound import GapMeter, service_gap
from scheduler_service.sim.data import AZURE_SAMPLE, MULTI_TENANT_SAMPLE
from scheduler_service.sim.gps import FluidServer, ideal_shares, max_min
from scheduler_service.sim.metrics import heavy_users, jain
from scheduler_service.sim.model import RunLog
from tests.sim.streams import stream


def test_max_min_fills_small_demands_first():
    """Capacity 10 over demands 2, 4, 10 gives 2, 4, 4; weights 1 and 3 divide 8 as 2 and 6."""
    assert max_min([2, 4, 10], [1, 1, 1], 10) == pytest.approx([2, 4, 4])
    assert max_min([10, 10], [1, 3], 8) == pytest.approx([2, 6])
    assert max_min([1, 1], [1, 1], 8) == pytest.approx([1, 1])


def test_gps_has_its_closed_form():
    """Weights 1 and 2 with backlogs 30 and 30: rates 1/3 and 2/3 until the second is done at 45."""
    fluid = FluidServer([1.0, 2.0])
    fluid.arrive(0, 30)
    fluid.arrive(1, 30)
    for _ in range(45):
        fluid.serve(1)

    assert fluid.served == pytest.approx([15, 30])
    fluid.serve(15)
    assert fluid.served == pytest.approx([30, 30])
    fluid.serve(5)
    assert fluid.served == pytest.approx([30, 30])


def test_ideal_shares_follow_the_dispatches():
    """A run that serves one user first is behind GPS by half of that for the other."""
    workload = stream([(0, 0, 5, 5), (0, 1, 5, 5), (9, 0, 1, 1)])
    log = RunLog([0, 5, 9], [-1] * 3, [-1] * 3, order=[0, 1, 2])
    shares = ideal_shares(workload, log)

    assert (shares.got, shares.ideal) == ([12, 10], pytest.approx([12, 10]))
    assert shares.lag == pytest.approx(5)


def test_the_gap_is_the_range_of_the_difference():
    """Charges 5 5 to one and 5 to the other while both wait: the gap is 10 at worst."""
    meter = GapMeter(2)
    for user in (0, 0, 0, 1, 1):
        meter.arrive(user)
    for user in (0, 0, 1):
        meter.dispatch(user, 5, 0)

    assert (meter.report.gap_micros, meter.report.bound_micros) == (10, 5)
    assert (meter.report.violations, meter.report.pair) == (1, (0, 1))


def test_a_user_that_left_starts_anew():
    """Charges while another user has nothing waiting do not count against it."""
    meter = GapMeter(2)
    meter.arrive(0)
    meter.arrive(0)
    meter.dispatch(0, 7, 0)
    meter.arrive(1)
    meter.dispatch(0, 7, 0)

    assert meter.report.gap_micros == 7


def test_weights_divide_the_charge():
    """A user of weight 2 is charged half."""
    workload = stream([(0, 0, 5, 5), (0, 1, 5, 5), (0, 1, 5, 5)], weights=[1000, 2000])
    log = RunLog([1, 2, 3], [-1] * 3, [-1] * 3, order=[1, 0, 2])

    assert service_gap(workload, log).gap_micros == 10_000_000


def test_jain_and_heavy():
    """Jain's index is 1 for equals and 1/n for one who has all; heavy is above the fair share."""
    rows = [(0, user, 50 if user == 0 else 5, 5) for user in range(4)]

    assert (jain([2, 2, 2]), jain([1, 0, 0, 0]), jain([])) == (1.0, 0.25, 1.0)
    assert heavy_users(stream(rows)) == {0}
    assert heavy_users(stream(rows[:1])) == set()


def test_demo_and_simulator_call_the_same_users_heavy():
    """One definition: whoever the demo says is heavy, the simulator says so, too."""
    for paths in (MULTI_TENANT_SAMPLE, AZURE_SAMPLE[:1]):
        played = arrivals.from_file(Path(paths[0]))
        names = sorted({arrival.user_id for arrival in played.arrivals})
        rows = [
            (round(a.at_s * 1e9), names.index(a.user_id), a.prompt, a.response)
            for a in played.arrivals
        ]

        assert {names[user] for user in heavy_users(stream(rows))} == played.heavy


def test_a_weight_makes_a_user_light():
    """Who may have more is heavy later; with equal demands and weights all are heavy."""
    rows = [(0, user, 30 if user == 0 else 20, 0) for user in range(2)]

    assert heavy_users(stream(rows)) == {0}
    assert heavy_users(stream(rows, weights=[3000, 1000])) == {1}
    assert heavy_users(stream([(0, user, 10, 0) for user in range(3)])) == {0, 1, 2}
