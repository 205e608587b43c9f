"""Metrics: what the catalogue promises, and what a page shows."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler_service.app.application import Application
from scheduler_service.app.census import census
from scheduler_service.app.limits import Limits
from scheduler_service.app.observation import Observation
from scheduler_service.app.readiness import Phase, Readiness
from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import MICRO, PRESETS
from scheduler_service.estimator.learning import PoolLearner, Usage
from scheduler_service.obs.catalogue import METRICS, POOLS_SHOWN_MAX
from scheduler_service.obs.metrics import Metrics, Sources
from tests.support.engines import running


class Shown:
    """A page, taken apart."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = {family.name: family for family in text_string_to_metric_families(text)}

    def value(self, sample: str, **labels: str) -> float:
        """Returns the one sample of that name with these labels."""
        (found,) = [
            s.value
            for family in self.families.values()
            for s in family.samples
            if s.name == sample and labels.items() <= s.labels.items()
        ]
        return found

    def count(self, sample: str) -> int:
        return sum(s.name == sample for f in self.families.values() for s in f.samples)


class Rigged:
    """An engine with metrics around it."""

    def __init__(self, rig, **options) -> None:
        self.rig = rig
        readiness = Readiness()
        self.seen = Observation.of(rig.engine, rig.store, {})
        self.app = Application.around(rig.engine, Limits(), readiness)
        self.metrics = Metrics(readiness, **options)
        self.metrics.attach(Sources(self.app, self.seen, lambda: 5_000_000))
        readiness.enter(Phase.SERVING)

    async def page(self) -> Shown:
        await self.rig.engine.durable()
        content_type, body = await self.metrics.page()
        assert content_type.startswith("text/plain")
        return Shown(body.decode())


@pytest.fixture
async def rig():
    async with running() as rig:
        yield rig


def _work(rig) -> None:
    rig.create_pool()
    for number in range(12):
        rig.enqueue(f"r{number}", f"u{number % 3}", cost=10 + number)
    for request_id in rig.dispatch(count=6)[:4]:
        rig.complete(request_id, output_tokens=5, prompt_tokens=5)
    rig.do(c.Cancel, pool="p", request_id="r11")


@pytest.mark.parametrize("name", METRICS)
def test_names(name):
    """A name has the prefix, its unit, and `_total` exactly when it is a counter."""
    metric = METRICS[name]

    assert re.fullmatch(r"fairsched_[a-z0-9_]+", name)
    assert name.endswith("_total") == (metric.kind == "counter")
    assert metric.stable != ("debug_" in name)
    assert metric.help.endswith(".")
    unit = metric.unit.replace(" ", "_").replace("s", "seconds") if metric.unit == "s" else ""
    assert unit in name
    if metric.unit == "cost units":
        assert "cost_units" in name
    if metric.unit == "bytes":
        assert name.endswith("_bytes")
    assert not {"user_id", "request_id"} & set(metric.labels)


async def test_a_page_is_what_there_is(rig):
    """Gauges are the census of the state, counters the tally of the decisions."""
    rigged = Rigged(rig)
    _work(rig)
    page = await rigged.page()
    now = census(rig.engine.state.pools["p"], rig.engine.now_ns())
    tally = rigged.seen.tally.pools["p"]

    assert page.value("fairsched_waiting_requests", pool="p") == now.waiting == 5
    assert page.value("fairsched_leases", pool="p") == now.leased == 2
    assert page.value("fairsched_enqueues_total", pool="p") == 12
    assert page.value("fairsched_ends_total", pool="p", state="succeeded") == 4
    assert page.value("fairsched_ends_total", pool="p", state="cancelled") == 1
    assert page.value("fairsched_virtual_time_cost_units", pool="p") == now.virtual_time / MICRO
    assert page.value("fairsched_fairness_gap_cost_units", pool="p") == now.gap / MICRO
    assert page.value("fairsched_fairness_bound_cost_units", pool="p") == now.bound / MICRO
    assert now.gap <= now.bound
    dispatches = [
        s.value
        for s in page.families["fairsched_dispatches"].samples
        if s.name == "fairsched_dispatches_total"
    ]
    assert sum(dispatches) == tally.dispatched == 6
    assert page.value("fairsched_wait_seconds_count", **{"class": "short"}) == 6
    assert page.value("fairsched_sequence") == rig.engine.log.durable.sequence
    head = rig.engine.log.durable.chain_hash
    assert page.value("fairsched_head_hash48") == int(head.hex()[:12], 16)
    assert page.value("fairsched_commits_total") == rig.engine.log.group_count
    assert page.value("fairsched_ready") == 1
    assert page.value("fairsched_debug_loop_lag_max_seconds") == 0.005


async def test_every_metric_is_in_the_catalogue_and_shown(rig):
    """A page shows nothing but catalogued metrics, and all of them once they have a value."""
    rigged = Rigged(rig, users_max=50)
    _work(rig)
    rig.create_pool("unbounded", PRESETS["qba"])
    learner = PoolLearner(by_work=True)
    learner.observe([Usage("u0", 5, 5, 10, short=True, cost=10, real_cost=12)], cutoff=3)
    rigged.seen.learners["p"] = learner
    rigged.metrics.called("Enqueue", "OK", 1_000_000)
    rigged.metrics.refused("Enqueue", "p", "QUEUE_FULL")
    rigged.metrics.refused("Complete", "", "LEASE_UNKNOWN")
    rig.do(c.NextDispatch, pools=("p",), worker="h", hand_over=True, lease_duration_ns=10**9)
    rig.clock.advance(120 * 10**9)
    rig.do(c.Tick)
    for _ in range(40):
        rig.enqueue(f"x{_}", "u9")
        rig.dispatch()
    rigged.metrics._readiness.problem("log", "It stands still.")
    page = await rigged.page()

    shown = {
        name + "_total" if family.type == "counter" else name
        for name, family in page.families.items()
        if name.startswith("fairsched_")
    }
    assert shown == set(METRICS)
    for name in shown:
        family = page.families[name.removesuffix("_total")]
        kinds = {"gauge": "gauge", "counter": "counter", "histogram": "histogram"}
        assert family.type == kinds[METRICS[name].kind]
        assert family.documentation == METRICS[name].help
        labels = {label for s in family.samples for label in s.labels} - {"le"}
        assert labels == set(METRICS[name].labels)
    assert page.value("fairsched_rejections_total", pool="p", reason="QUEUE_FULL") == 1
    assert page.value("fairsched_rpc_errors_total", rpc="Complete", reason="LEASE_UNKNOWN") == 1
    assert page.value("fairsched_ready") == 0


async def test_calls_are_measured(rig):
    """Calls are counted by code, and timed in buckets that add up."""
    rigged = Rigged(rig)
    for micros in (50, 150, 700, 20_000_000):
        rigged.metrics.called("Enqueue", "OK", micros * 1000)
    rigged.metrics.called("Enqueue", "RESOURCE_EXHAUSTED", 1000)
    page = await rigged.page()

    assert page.value("fairsched_rpcs_total", rpc="Enqueue", code="OK") == 4
    assert page.value("fairsched_rpc_duration_seconds_bucket", rpc="Enqueue", le="0.0001") == 2
    assert page.value("fairsched_rpc_duration_seconds_bucket", rpc="Enqueue", le="0.001") == 4
    assert page.value("fairsched_rpc_duration_seconds_bucket", rpc="Enqueue", le="+Inf") == 5
    assert page.value("fairsched_rpc_duration_seconds_sum", rpc="Enqueue") == pytest.approx(
        20.000901
    )


async def test_users_are_no_label_by_default(rig):
    """However many users there are, a page does not grow with them."""
    rigged = Rigged(rig)
    rig.create_pool()
    rig.enqueue("r0", "first")
    small = len((await rigged.page()).text)
    for number in range(3000):
        rig.enqueue(f"s{number}", f"user-{number}")
        rig.dispatch()
    page = await rigged.page()

    assert "user-" not in page.text
    assert len(page.text) < small + 4000


async def test_the_largest_users_are_named_if_asked_for(rig):
    """With a limit set, that many users are named, masked if asked for, and the rest is one sum."""
    rigged = Rigged(rig, users_max=2, mask=lambda user: "masked-" + user[::-1])
    rig.create_pool()
    costs = {"a": 5, "b": 50, "c": 500, "d": 7}
    for user, cost in costs.items():
        rig.enqueue(f"r-{user}", user, cost=cost)
        rig.dispatch()
    page = await rigged.page()

    assert page.count("fairsched_user_cost_units_total") == 2
    assert page.value("fairsched_user_cost_units_total", user="masked-c") == 500
    assert page.value("fairsched_user_cost_units_total", user="masked-b") == 50
    assert page.value("fairsched_other_users_cost_units_total", pool="p") == 12


async def test_many_pools_are_bounded(rig):
    """With very many pools a page shows the first hundred, says how many there are, and stays
    below 2 MB."""
    rigged = Rigged(rig)
    for number in range(POOLS_SHOWN_MAX + 50):
        rig.create_pool(f"pool-{number}")
    page = await rigged.page()

    assert page.count("fairsched_waiting_requests") == POOLS_SHOWN_MAX
    assert page.value("fairsched_pools") == POOLS_SHOWN_MAX + 50
    assert len(page.text) < 2_000_000


async def test_odd_names_are_escaped(rig):
    """A pool may have any name; the page stays readable to a parser."""
    rigged = Rigged(rig)
    names = ['a"b', "a\\b", "<script>", "é🐍", "a,b={}", " "]
    for name in names:
        rig.create_pool(name)
    page = await rigged.page()

    for name in names:
        assert page.value("fairsched_waiting_requests", pool=name) == 0


async def test_before_the_log_is_replayed():
    """While it starts there is a page too; it says not ready."""
    metrics = Metrics(Readiness())
    page = Shown((await metrics.page())[1].decode())

    assert page.value("fairsched_ready") == 0
    assert page.count("fairsched_sequence") == 0


async def test_a_broken_law_is_counted(rig):
    """A violated invariant shows in the metric that alerts on it."""
    rigged = Rigged(rig)
    await rig.engine.durable()
    rig.engine.failed = AssertionError("band")
    _, body = await rigged.metrics.page()

    assert Shown(body.decode()).value("fairsched_invariant_violations_total") == 1
    rig.engine.failed = None
    assert d.Dispatched not in rigged.seen.tally.decisions


async def test_users_at_their_cap_show(rig):
    """Leases that never end fill a user's cap, and that shows."""
    rigged = Rigged(rig)
    rig.create_pool()
    rig.do(c.ConfigureUser, pool="p", user_id="u", weight_milli=0, max_in_flight=1)
    rig.enqueue("r0")
    rig.enqueue("r1")
    rig.dispatch()
    rig.enqueue("r2", "other")
    rig.do(c.Pause, pool="p", user_id="other")
    page = await rigged.page()
    rig.complete("r0")
    later = await rigged.page()

    assert page.value("fairsched_held_users", pool="p", cause="user_cap") == 1
    assert page.value("fairsched_held_users", pool="p", cause="user_paused") == 1
    assert page.value("fairsched_backlogged_users", pool="p") == 0
    assert later.value("fairsched_held_users", pool="p", cause="user_cap") == 0


async def test_what_does_not_fit_shows(rig):
    """A worker asks, the next request does not fit it, and the pool stands still meanwhile."""
    rigged = Rigged(rig)
    rig.create_pool(policy=PRESETS["sfq"])
    rig.do(c.Enqueue, pool="p", request_id="big", user_id="u", cost=10, kv_tokens=500)
    offer = d.Offer(free_tokens=10, total_tokens=1000)
    answer = rig.do(c.NextDispatch, pools=("p",), worker="w", offer=offer, hand_over=False)
    rigged.app.blocked.misfits.asked("w", ("p",), answer)
    rig.clock.advance(3 * 10**9)
    page = await rigged.page()

    assert page.value("fairsched_misfit_requests", pool="p") == 1
    assert page.value("fairsched_stalled_seconds_total", pool="p") == pytest.approx(3, abs=0.01)
