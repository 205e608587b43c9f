"""Baselines against examples worked by hand from their papers."""

import pytest

from scheduler_service.sim.baselines import BASELINES
from scheduler_service.sim.baselines.deficit import DeficitLocality, DeficitRoundRobin
from scheduler_service.sim.baselines.rounds import RoundRobin, Stride
from scheduler_service.sim.baselines.served import ChargeAsServed, TwoCounter
from scheduler_service.sim.baselines.tags import FinishTags, FluidClock, StartTags
from scheduler_service.sim.method import NOTHING, STALLED
from scheduler_service.sim.model import NS_PER_SECOND, RunLog
from scheduler_service.sim.sequential import Sequential
from tests.sim.streams import stream


def play(method, plan, users, dispatches):
    """Returns (user, cost) of dispatches when all of `plan` waits from the start."""
    run = Sequential(method, plan, users)
    for user in range(users):
        run.send(user, run.left(user))
    return [run.dispatch() for _ in range(dispatches)]


def test_drr_serves_the_papers_example():
    """Quantum 500 over queues 200 750 20, 500 500, 100 600 200, 180 700 50 (DRR, figures 2, 3).

    Round 1 leaves deficits 300, 0, 400, 320; in round 2 every head fits.
    """
    queues = [[200, 750, 20], [500, 500], [100, 600, 200], [180, 700, 50]]
    plan = [(user, cost) for user, costs in enumerate(queues) for cost in costs]

    served = play(DeficitRoundRobin(500), plan, 4, len(plan))

    round_1 = [(0, 200), (1, 500), (2, 100), (3, 180)]
    round_2 = [(0, 750), (0, 20), (1, 500), (2, 600), (2, 200), (3, 700), (3, 50)]
    assert served == round_1 + round_2


def test_drr_with_a_small_quantum_waits_many_rounds():
    """A head of 100 with quantum 1 goes after 100 rounds, however few steps that takes us."""
    served = play(DeficitRoundRobin(1), [(0, 100)] + [(1, 1)] * 120, 2, 101)

    assert served.index((0, 100)) == 99


def test_wfq_gives_the_textbook_finish_tags():
    """Sizes 1, 2, 2 at time 0 and 2 at time 4 on equal weights have tags 1, 2, 2 and 3.5.

    At time 3 the round number is 1 and the first user leaves the fluid server; at 4 it is 1.5 and
    the user is back; at 5.5 it is 2 and the other two leave; at 7 it is 3.5.
    """
    clock = FluidClock(1.0, [1000, 1000, 1000])
    tags = [clock.tag(0, 1), clock.tag(1, 2), clock.tag(2, 2)]
    rounds = []
    for tenths in (30, 40, 55, 70):
        clock.advance(tenths * NS_PER_SECOND // 10)
        rounds.append(clock.value)
        if tenths == 40:
            tags.append(clock.tag(0, 2))

    assert tags == pytest.approx([1, 2, 2, 3.5])
    assert rounds == pytest.approx([1, 1.5, 2, 3.5])


def test_wfq_orders_by_finish_and_weight():
    """A heavy request yields to lighter ones; twice the weight halves the tag."""
    method = FinishTags(1000)

    assert play(method, [(0, 10), (1, 3), (1, 3), (1, 3), (1, 3)], 2, 5) == [
        (1, 3),
        (1, 3),
        (1, 3),
        (0, 10),
        (1, 3),
    ]


def test_stride_serves_the_papers_example():
    """Tickets 3, 2, 1 get 3, 2 and 1 of every 6 quanta, in the order A B A A B C or its ties."""
    rows = [(0, user, 1, 1) for user in (0, 1, 2) for _ in range(12)]
    workload = stream(rows, weights=[3000, 2000, 1000])
    method = Stride()
    method.bind(workload, [1] * 36, RunLog([-1] * 36, [-1] * 36, [-1] * 36))
    for request in range(36):
        method.enqueue(request, 0)

    order = [workload.user[method.dispatch(0, 0, -1)] for _ in range(12)]

    assert order[:6] in ([0, 1, 0, 0, 1, 2], [0, 1, 0, 1, 0, 2], [0, 1, 0, 0, 1, 2])
    assert [order[:6].count(user) for user in range(3)] == [3, 2, 1]
    assert [order[6:].count(user) for user in range(3)] == [3, 2, 1]


def test_round_robin_counts_requests():
    """Each backlogged user gets one request in turn, whatever it costs."""
    served = play(RoundRobin(), [(0, 100)] * 3 + [(1, 1)] * 3, 2, 6)

    assert [user for user, _ in served] == [0, 1, 0, 1, 0, 1]


def test_sfq_reference_makes_the_articles_table():
    """The reference with the article's rule serves A B B B A B B B (SFQ §2.7)."""
    served = play(StartTags(), [(0, 3)] * 3 + [(1, 1)] * 8, 2, 8)

    assert "".join("AB"[user] for user, _ in served) == "ABBBABBB"


def test_cfs_charges_what_was_served():
    """After equal service the counters are equal, at one price a token."""
    run = Sequential(ChargeAsServed(), [(0, 8)] * 2 + [(1, 2)] * 8, 2)
    run.send(0, 2)
    run.send(1, 8)
    for _ in range(5):
        run.dispatch()

    assert run.given == [8, 8]
    assert run.method.counter(0) == run.method.counter(1) == 8


def test_dlpm_refills_when_nobody_has_credit():
    """Users with credit go in order of arrival; a refill gives every user in debt a quantum."""
    method = DeficitLocality(quantum_tokens=10, prompt_price=1, output_price=1)
    run = Sequential(method, [(0, 20)] * 2 + [(1, 4)] * 6, 2)
    run.send(0, 2)
    run.send(1, 6)
    order = [run.dispatch()[0] for _ in range(7)]

    assert order == [0, 1, 1, 1, 1, 1, 0]
    assert method.credit == [-10_000, 10_000]


def test_two_counters_weigh_both():
    """With equal charges on both sides the two users take turns."""
    served = play(TwoCounter(), [(0, 10)] * 3 + [(1, 10)] * 3, 2, 6)

    assert [user for user, _ in served] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("name", BASELINES)
def test_asking_again_changes_nothing(name):
    """A selected request that does not fit waits, blocks, and is still the selected one."""
    workload = stream([(0, user, 5, 5) for user in (0, 1, 0, 1)])
    method = BASELINES[name]()
    method.bind(workload, [10] * 4, RunLog([-1] * 4, [-1] * 4, [-1] * 4))

    assert method.dispatch(0, 0, -1) == NOTHING
    for request in range(4):
        method.enqueue(request, 0)
    assert [method.dispatch(0, 1, 9) for _ in range(3)] == [STALLED] * 3
    assert method.dispatch(0, 1, 10) == 0
    assert method.waiting == 3
