"""Sections B and C of the reports: long against short, placement, and what cost is settled.

Where a row asks for a settlement after the run, the design wins: a charge is made once, at
dispatch, and never corrected (SFQ §5.1).  The row's concern is then shown where it is answered:
in the estimator, in the measured error, and in what a repeat of a call may not change.
"""

import statistics
import sys

import pytest

from fairsched.v1 import admin_service_pb2 as admin
from fairsched.v1 import audit_service_pb2 as audit
from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core import decisions as d
from scheduler_service.core.policy import MICRO, SECOND_NS
from tests.support.driver import LONG, SHORT, Driver
from tests.support.live import POOL, SUCCEEDED, refused
from tests.support.programs import PATIENT, policy

FAIR = policy("fair_qba", **PATIENT)


def waits_of_shorts(*, with_longs):
    """Serves 200 shorts of 20 users on 4 workers; returns waits of shorts and of longs, seconds."""
    driver = Driver(policy("fair_qba", **PATIENT, aging_min_sample=8), replica=False)
    if with_longs:
        for number in range(8):
            driver.enqueue(f"long{number}", "C", 130_000, LONG)
    for number in range(200):
        driver.enqueue(f"s{number}", f"u{number % 20}", 100, SHORT)
    free_at = [0.0] * 4
    leases = {}
    while True:
        worker = free_at.index(min(free_at))
        driver.advance(max(free_at[worker] - driver.now_ns / SECOND_NS, 0))
        if worker in leases:
            driver.complete(leases.pop(worker))
        granted = driver.next(1, worker=f"w{worker}")
        if not granted:
            break
        leases[worker] = granted[0].lease_id
        free_at[worker] = driver.now_ns / SECOND_NS + granted[0].cost / 1000
    found = driver.of(d.Dispatched)
    shorts = [one.wait_ns / SECOND_NS for one in found if one.predicted_class is SHORT]
    return shorts, [one.wait_ns / SECOND_NS for one in found if one.predicted_class is LONG]


def test_r21_a_few_very_long_prompts_do_not_hold_up_the_short_ones():
    """vllm-project/vllm#10235: the median short wait at most doubles, and no long is starved."""
    without, _ = waits_of_shorts(with_longs=False)
    shorts, longs = waits_of_shorts(with_longs=True)

    assert statistics.median(shorts) <= 2 * statistics.median(without)
    assert len(longs) == 8


@pytest.mark.parametrize("preset", ["fair_qba", "qba"])
def test_r23_a_long_request_is_dispatched_under_an_endless_stream_of_shorts(preset):
    """sgl-project/sglang#31954: at 110 % of capacity the long goes after its aging and k shorts."""
    driver = Driver(policy(preset, **PATIENT, aging_min_sample=8, quota_k=5), replica=False)
    for number in range(20):
        driver.enqueue(f"warm{number}", "L", 10)
        driver.next()
    driver.enqueue("long", "L", 100, LONG)
    for number in range(400):
        driver.advance(1)
        driver.enqueue(f"s{number}", f"u{number % 10}", 10)
        if number % 10:
            driver.next()
        if any(one.request_id == "long" for one in driver.of(d.Dispatched)):
            break
    else:
        raise AssertionError("the long request starved")

    assert number < 100


async def test_r26_a_head_that_does_not_fit_lets_smaller_ones_pass(service):
    """sgl-project/sglang#23152: the small worker is served, the big request keeps its place."""
    await service.enqueue("big", "A", cost=10, kv_tokens=5000)
    for number in range(10):
        await service.enqueue(f"small{number}", f"u{number}", cost=10, kv_tokens=100)

    small = await service.next("w1", offer=decision_pb2.Offer(free_tokens=1000, total_tokens=1000))
    big = await service.next(
        "w2", offer=decision_pb2.Offer(free_tokens=10_000, total_tokens=10_000)
    )

    assert [one.request_id[:5] for one in small.dispatches] == ["small"]
    assert [one.request_id for one in big.dispatches] == ["big"]
    row = await service.audit.ExplainDecision(
        audit.ExplainDecisionRequest(sequence=small.dispatches[0].sequence)
    )
    assert list(row.decision.dispatched.overtook) == ["big"]


def test_r27_who_was_passed_over_too_often_gets_the_next_worker_that_can_hold_it():
    """vllm-project/vllm#33499: it is counted how often it was passed over, and that is bounded."""
    driver = Driver(policy("fair_qba", **PATIENT, max_overtakes=5))
    driver.ask(1, "big-worker", offer=d.Offer(free_tokens=10_000, total_tokens=10_000))
    driver.enqueue("big", "A", 10, kv_tokens=5000)
    small = d.Offer(free_tokens=1000, total_tokens=1000)
    for number in range(6):
        driver.enqueue(f"s{number}", f"u{number % 5}", 10, kv_tokens=100)
        driver.next(1, "small-worker", offer=small)
    assert driver.state.pools["pool"].requests["big"].overtakes >= 5

    busy = d.Offer(free_tokens=1000, total_tokens=10_000)
    driver.enqueue("s-last", "u1", 10, kv_tokens=100)
    assert driver.next(1, "big-worker", offer=busy) == []
    (one,) = driver.next(1, "big-worker", offer=d.Offer(free_tokens=9000, total_tokens=10_000))

    assert one.request_id == "big"
    assert one.turn is d.Turn.RESERVED


def test_r27_what_no_live_worker_can_hold_does_not_stall_the_others():
    """The same with small workers only: a thousand pass, then the first big worker gets it."""
    driver = Driver(policy("fair_qba", **PATIENT), replica=False)
    small = d.Offer(free_tokens=1000, total_tokens=1000)
    driver.ask(1, "small-worker", offer=small)
    driver.enqueue("big", "A", 10, kv_tokens=5000)
    for number in range(1000):
        driver.enqueue(f"s{number}", f"u{number % 5}", 10, kv_tokens=100)
    served = []
    while granted := driver.next(1, "small-worker", offer=small):
        served += granted
    (one,) = driver.next(1, "big-worker", offer=d.Offer(free_tokens=10_000, total_tokens=10_000))

    assert len(served) == 1000
    assert one.request_id == "big"
    assert any(one.overtook == ("big",) for one in served)


def test_r29_batch_keeps_a_trickle_beside_interactive_load():
    """gateway-api-inference-extension#1861: a weight is the guaranteed share, and it can grow."""
    driver = Driver(policy("sfq", **PATIENT), replica=False)
    driver.weigh("interactive", 95_000)
    driver.weigh("batch", 5_000)
    for number in range(100):
        driver.enqueue(f"b{number}", "batch", 10)
    for number in range(700):
        driver.enqueue(f"i{number}", "interactive", 10)
    saturated = [one.user_id for one in driver.next(400)]
    for number in range(380, 700):
        driver.attempt(
            driver.make(driver.core.commands.Cancel, pool="pool", request_id=f"i{number}")
        )
    alone = [one.user_id for one in driver.next(50)]

    assert abs(saturated.count("batch") / 400 - 0.05) <= 0.01
    assert alone.count("batch") == 50


async def test_r30_a_newcomer_gets_one_of_the_next_two_slots_however_long_the_queue(service):
    """vllm-project/vllm#45561: leased work is not pre-empted; the newcomer is next but one.

    The queue had drained, so both users start level (SFQ §2.5) and the older request goes first.
    """
    for number in range(4):
        await service.enqueue(f"running{number}", "A", cost=1000)
    held = [(await service.next(f"w{number}")).dispatches[0] for number in range(4)]
    for number in range(50):
        await service.enqueue(f"waiting{number}", "A", cost=1000)
    await service.enqueue("urgent", "U", cost=10)

    given = []
    for one in held[:2]:
        done = pb.CompleteRequest(lease_id=one.lease_id, outcome=SUCCEEDED)
        given += (await service.next("w0", completions=[done])).dispatches

    assert "urgent" in [one.request_id for one in given]


async def test_r31_an_unknown_class_is_refused_and_the_class_used_is_shown(service):
    """vllm-project/vllm#24365: nothing that was asked for is ignored in silence."""
    found = await refused(service.enqueue("x", predicted_class=99))
    answer = await service.enqueue("y", predicted_class=policy_pb2.PREDICTED_CLASS_LONG)

    assert "predicted_class" in found.fields
    assert answer.predicted_class == policy_pb2.PREDICTED_CLASS_LONG
    assert (await service.state("y")).predicted_class == policy_pb2.PREDICTED_CLASS_LONG


def test_r32_a_decision_costs_no_more_with_ten_times_the_queue():
    """NVIDIA/TensorRT-LLM#12428: no comparison reads a clock, no selection scans the queue.

    Counted in looks at heap entries and in lines of source that run, not in seconds.
    """

    def looks(waiting):
        driver = Driver(FAIR, replica=False)
        driver.oracle = type("Off", (), {"feed": lambda *_: [], "finish": lambda _: []})()
        driver.state.pools.clear()
        driver.do(
            driver.core.commands.ConfigurePool,
            pool="pool",
            policy=FAIR,
            policy_digest="x",
            create=True,
        )
        for number in range(waiting):
            driver.enqueue(f"r{number}", f"u{number % 100}", 10)
        backlog = driver.state.pools["pool"].backlog
        flows, count, lines = backlog._flows, 0, 0

        class Counting(dict):
            def get(self, key, default=None):
                nonlocal count
                count += 1
                return super().get(key, default)

        def line(_frame, event, _argument):
            nonlocal lines
            lines += event == "line"
            return line

        backlog._flows = Counting(flows)
        before = sys.gettrace()
        sys.settrace(line)
        try:
            for _ in range(50):
                driver.ask()
        finally:
            sys.settrace(before)
        return count, lines

    few, many = looks(2_000), looks(20_000)

    assert many[0] <= 2 * few[0]
    assert many[1] <= 2 * few[1]


async def test_r33_a_late_report_of_more_usage_changes_no_meter_but_teaches_the_estimator(service):
    """typedef-ai/fenic#313: the design wins; the concern is answered by the estimator.

    The charge stays (SFQ §5.1).  What the user really used is in the log next to what it was
    charged, the error is measured, and its next requests are estimated higher.
    """
    await service.admin.CreatePool(
        admin.CreatePoolRequest(pool="tokens", policy=policy_pb2.PoolPolicy(preset="fair_qba"))
    )
    tokens = {"pool": "tokens", "prompt_tokens": 10, "max_output_tokens": 8000}
    first = await service.enqueue("r0", "A", **tokens)
    meter = None
    for number in range(1, 60):
        (one,) = (await service.next(pools=["tokens"])).dispatches
        meter = service.engine.state.pools["tokens"].flows["A"].meter
        await service.complete(one.lease_id, usage=pb.Usage(prompt_tokens=10, output_tokens=8000))
        flow = service.engine.state.pools["tokens"].flows.get("A")
        assert flow is None or flow.meter == meter
        await service.enqueue(f"r{number}", "A", **tokens)
    teacher = service.service.running.teacher
    teacher._next_ns.clear()
    teacher.teach()
    after = await service.enqueue("last", "A", **tokens)
    shown = await service.audit.ExplainDecision(
        audit.ExplainDecisionRequest(request=audit.RequestKey(pool="tokens", request_id="r0"))
    )

    assert after.cost > first.cost * 3 // 2
    assert shown.text
    errors = teacher.learners["tokens"].errors
    assert errors.too_low_cost > 0


async def test_r35_a_cancelled_lease_is_charged_once_whatever_is_repeated(service):
    """BerriAI/litellm#37539: no refund, so none can be given twice; repeats change nothing."""
    await service.enqueue("x", "A", cost=1000)
    await service.enqueue("more", "A", cost=1000)
    await service.enqueue("other", "B", cost=1000)
    (one,) = (await service.next()).dispatches
    pool = service.engine.state.pools[POOL]
    key = pb.CancelRequest(pool=POOL, request_id="x")
    charged = [pool.flows["A"].meter]
    await service.scheduler.Cancel(key)
    await service.scheduler.Cancel(key)
    charged.append(pool.flows["A"].meter)
    ended = await service.complete(one.lease_id)
    charged.append(pool.flows["A"].meter)
    again = await service.complete(one.lease_id)
    charged.append(pool.flows["A"].meter)

    assert charged == [1000 * MICRO] * 4
    assert ended.state == again.state == decision_pb2.REQUEST_STATE_CANCELLED
    assert again.duplicate
