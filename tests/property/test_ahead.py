"""`requests_ahead` is one count: what Enqueue says, what GetRequest says, and what happens."""

import itertools
import random
import statistics
from collections import defaultdict

import pytest

from scheduler_service.app.outlook import COUNTED_MAX, Forecast
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.ahead import BUDGET, ahead_of
from scheduler_service.core.invariants import check
from scheduler_service.core.policy import SECOND_NS
from scheduler_service.core.profile import AGE_MIN_NS, Profile
from scheduler_service.core.snapshot import dump, restore
from tests.support.scenes import LONG, SHORT, Scene

PRESETS = ["fair_qba", "sfq", "qba", "psf", "aa", "fcfs"]
MISSED = {"fair_qba": 0.05, "aa": 0.05}
"""By which part of the backlog a newcomer's place may be missed on average; 0 for the others."""


class Asked:
    """A scene whose newcomers are told at once how many are ahead; it stands in for the engine."""

    def __init__(self, preset, **policy):
        self.scene = Scene(preset, **policy)
        self.state = self.scene.state
        self._handlers = defaultdict(list)
        self._told = len(self.scene.log)
        self.forecast = Forecast(self)

    @property
    def pool(self):
        return self.scene.pool

    def on(self, kinds, handler):
        for kind in kinds:
            self._handlers[kind].append(handler)

    def tell(self):
        """Tells the forecast what was decided, as an engine does in the turn of a command."""
        log = self.scene.log
        for decision in log[self._told :]:
            for handler in self._handlers[type(decision)]:
                handler(decision)
        self._told = len(log)

    def enqueue(self, request_id, user_id, **fields):
        """Returns the request, and what Enqueue says about it."""
        request = self.scene.enqueue(request_id, user_id, **fields)
        self.tell()
        ahead, _ = self.forecast.at_once(self.pool, request, self.scene.now_ns)
        return request, ahead

    def dispatch(self):
        for request in self.scene.ask().granted:
            self.scene.finish(request.request_id)
        self.tell()

    def do(self, kind, **fields):
        self.scene.do(kind, **fields)
        self.tell()


def _newcomer(rng, users):
    """Returns a user and a request like those of real pools: few send much, costs are skewed."""
    kind = rng.choice([SHORT, SHORT, LONG])
    cost = rng.randrange(1, 300) if kind is SHORT else rng.randrange(300, 3000)
    user = rng.choices(range(users), [1 / (number + 1) for number in range(users)])[0]
    return f"u{user}", {"cost": cost, "predicted_class": kind}


def _random_command(rng, asked, users, *, operators):
    """Does something that is no arrival; now and then what an operator does, if there are any."""
    what = rng.random() * (1 if operators else 0.9)
    waiting = [r for r in asked.pool.requests.values() if r.state is d.RequestState.WAITING]
    user_id = f"u{rng.randrange(users)}"
    if what < 0.8:
        asked.dispatch()
    elif what < 0.9 and waiting:
        asked.do(c.Cancel, pool="p", request_id=rng.choice(waiting).request_id)
    elif what < 0.94:
        weight_milli = rng.choice([500, 1000, 3000])
        asked.do(
            c.ConfigureUser, pool="p", user_id=user_id, weight_milli=weight_milli, max_in_flight=-1
        )
    elif what < 0.97:
        asked.do(c.Pause, pool="p", user_id=user_id)
    else:
        asked.do(c.Resume, pool="p", user_id=user_id)


def _program(preset, seed, arrivals=500, *, operators=False):
    """Yields (waiting, said, counted, by a fresh profile) for every arrival of a program."""
    rng = random.Random(seed)
    users = rng.choice([1, 3, 12, 60])
    asked = Asked(preset, aging_min_sample=rng.choice([1, 32]), quota_k=rng.choice([1, 3, 5]))
    busy = rng.choice([0.2, 0.5, 0.9])
    for number in range(arrivals):
        asked.scene.pass_time(rng.choice([0, 0.001, 0.01]))
        user_id, fields = _newcomer(rng, users)
        request, said = asked.enqueue(f"r{number}", user_id, **fields)
        if request.state is d.RequestState.WAITING:
            counted = ahead_of(asked.pool, request).requests
            fresh = 0
            if asked.pool.backlog.charged:
                fresh = Profile(asked.pool, request, 0).before_newest(asked.pool, request)
            yield asked.pool.waiting, said, counted, fresh
        if rng.random() < busy:
            _random_command(rng, asked, users, operators=operators)


def _places(scene):
    """Returns the place of each waiting request if nothing else arrives, by dispatching them."""
    order = scene.drain()
    sequences = [scene.pool.gone[request_id].sequence for request_id in order]
    return {
        request_id: sum(earlier < sequences[place] for earlier in sequences[:place])
        for place, request_id in enumerate(order)
    }


@pytest.mark.parametrize("operators", [False, True])
@pytest.mark.parametrize("preset", PRESETS)
def test_enqueue_says_what_get_request_says(preset, operators):
    """Equal while few wait; else within the stated parts of what waits, one per cent on average."""
    largest = {"fair_qba": 0.6, "sfq": 0.1}.get(preset, 0)
    errors, few = [], 0
    for seed in range(12):
        for waiting, said, counted, _ in _program(preset, seed, operators=operators):
            assert waiting <= BUDGET
            if waiting <= COUNTED_MAX:
                assert said == counted
                few += 1
            else:
                errors.append(abs(said - counted) / waiting)
                assert operators or errors[-1] <= largest, (seed, waiting, said, counted)

    assert few > 500
    assert len(errors) > 500
    assert statistics.mean(errors) <= 0.01


@pytest.mark.parametrize("preset", ["fair_qba", "sfq"])
def test_a_fresh_profile_is_the_count(preset):
    """Made at the moment of the question, the profile gives the count, to the request."""
    for seed in range(6):
        for waiting, _, counted, fresh in _program(preset, seed, arrivals=200, operators=True):
            assert fresh == counted, (seed, waiting)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("users", [1, 5, 40])
def test_enqueue_says_what_happens(preset, users):
    """The place that Enqueue told each newcomer is the one it had, if nothing else had arrived."""
    rng = random.Random(users)
    asked = Asked(preset, aging_min_sample=32)
    said = {}
    for number in range(400):
        asked.scene.pass_time(0.01)
        user_id, fields = _newcomer(rng, users)
        _, ahead = asked.enqueue(f"r{number}", user_id, **fields)
        if number >= 300:
            said[f"r{number}"] = ahead
        elif number % 4 == 0:
            asked.dispatch()
    count = asked.pool.waiting
    places = _places(asked.scene)
    errors = [(ahead - places[request_id]) / count for request_id, ahead in said.items()]

    assert count > 300
    assert statistics.mean(map(abs, errors)) <= MISSED.get(preset, 0)


def _crowd(preset, count, users=7, **policy):
    """Returns a scene with so many waiting, and the numbers of more."""
    asked, numbers = Asked(preset, max_waiting=10**6, **policy), itertools.count()
    for number in itertools.islice(numbers, count):
        asked.enqueue(f"r{number}", f"u{number % users}")
    return asked, numbers


def _made(asked, numbers, steps, act=None):
    """Returns how many profiles the next arrivals have made, 10 ms apart."""
    profiles = []
    for number in itertools.islice(numbers, steps):
        asked.scene.pass_time(0.01)
        if act is not None:
            act(number)
        asked.enqueue(f"r{number}", f"u{number % 7}")
        profiles.append(asked.forecast._profiles.get("p"))
    return len(set(map(id, profiles)))


@pytest.mark.parametrize("preset", ["fair_qba", "sfq"])
def test_what_operators_do_makes_no_more_profiles(preset):
    """A pause or a weight has it made anew, but not before its age allows."""
    asked, numbers = _crowd(preset, BUDGET)

    def act(number):
        kind = (c.Pause, c.Resume)[number % 2]
        asked.do(kind, pool="p", user_id="u1")
        fields = {"weight_milli": 500 + number, "max_in_flight": -1}
        asked.do(c.ConfigureUser, pool="p", user_id="u2", **fields)

    seconds, most = 2, SECOND_NS // AGE_MIN_NS
    assert 2 <= _made(asked, numbers, 100 * seconds, act) <= seconds * most + 1


def test_a_profile_made_again_knows_of_a_pause():
    """Soon after a pause the place is the count again."""
    asked, numbers = _crowd("sfq", 200, users=2)
    asked.do(c.Pause, pool="p", user_id="u1")
    asked.scene.pass_time(AGE_MIN_NS / SECOND_NS)
    request, said = asked.enqueue(f"r{next(numbers)}", "u0")

    assert said == ahead_of(asked.pool, request).requests == 100


def test_around_the_limit_profiles_are_not_made_by_turns():
    """With the count going to and fro about the limit, one serves, and what is said is counted."""
    asked, numbers = _crowd("sfq", COUNTED_MAX + 1)
    made = set()
    for number in itertools.islice(numbers, 20):
        asked.dispatch()
        if number % 2:
            asked.dispatch()
        request, said = asked.enqueue(f"r{number}", "u1")
        made.add(asked.forecast._profiles.get("p"))
        if asked.pool.waiting <= COUNTED_MAX:
            assert said == ahead_of(asked.pool, request).requests
        if number % 2:
            asked.enqueue(f"s{number}", "u2")

    assert len(made) == 1
    assert None not in made


@pytest.mark.parametrize("how", ["nothing waits", "it is old"])
def test_a_profile_of_no_use_is_dropped(how):
    """When arrivals have stopped, dispatches are not followed for ever."""
    asked, _ = _crowd("sfq", 100)
    assert asked.forecast._profiles
    if how == "it is old":
        asked.scene.pass_time(2)
        asked.dispatch()
    else:
        while asked.pool.waiting:
            asked.dispatch()

    assert asked.forecast._profiles == {}


@pytest.mark.parametrize("preset", ["qba", "psf", "aa", "fcfs"])
def test_by_age_nothing_is_kept(preset):
    """With unbounded slack a newcomer's place follows from counts."""
    asked, _ = _crowd(preset, 100)

    assert asked.forecast._profiles == {}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_counts_are_right_in_a_restored_state(preset):
    """What is derived is no part of the image, and made anew from it."""
    rng = random.Random(1)
    asked = Asked(preset)
    for number in range(100):
        user_id, fields = _newcomer(rng, 5)
        asked.enqueue(f"r{number}", user_id, **fields)
        if number % 3 == 0:
            _random_command(rng, asked, 5, operators=True)
    restored = restore(dump(asked.state)).pools["p"]
    check(asked.state)

    assert 0 < restored.waiting_shorts < restored.waiting
    assert restored.waiting_shorts == asked.pool.waiting_shorts
    for request_id, request in asked.pool.requests.items():
        if request.state is d.RequestState.WAITING:
            again = ahead_of(restored, restored.requests[request_id])
            assert again == ahead_of(asked.pool, request)
