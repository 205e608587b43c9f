"""The engine: exact against the slow one, and against arithmetic."""

import pytest

from scheduler_service.sim.baselines import BASELINES
from scheduler_service.sim.baselines.rounds import FirstCome
from scheduler_service.sim.baselines.served import TokenCounter
from scheduler_service.sim.kernel import StuckError, simulate
from scheduler_service.sim.method import NOTHING
from scheduler_service.sim.model import PAPER_ENGINE, EngineShape
from scheduler_service.sim.workload import synthetic
from tests.sim.naive_engine import NaiveCounters, run
from tests.sim.streams import random_stream, stream

SHAPES = {
    "live": EngineShape(token_budget=32, decode_block=8, kv_capacity=300, kv_rule="live"),
    "reserve": EngineShape(token_budget=32, decode_block=8, kv_capacity=300, kv_rule="reserve"),
    "tight": EngineShape(token_budget=16, decode_block=8, kv_capacity=700, kv_rule="live"),
    "one block": EngineShape(token_budget=5, decode_block=5, kv_capacity=400, kv_rule="reserve"),
}


def seen(log):
    return (
        log.start_ns,
        log.first_token_ns,
        log.finish_ns,
        log.order,
        (log.engines[0].batches, log.engines[0].overflow_batches),
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("seed", range(12))
def test_equals_the_slow_engine(shape, seed):
    """Running alike batches as one step changes no time, no order and no count."""
    workload = random_stream(seed)

    assert seen(simulate(workload, FirstCome(), shape)) == run(workload, shape)


def test_equals_the_slow_engine_on_the_papers_stream():
    """The same on the paper's sizes and engine."""
    workload = synthetic(3, count=250)

    assert seen(simulate(workload, FirstCome(), PAPER_ENGINE)) == run(workload, PAPER_ENGINE)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_token_counters_are_those_of_the_definition(shape, seed):
    """VTC in the engine dispatches as counters do that are kept token by token."""
    workload = random_stream(seed, users=4)
    method, naive = TokenCounter(), NaiveCounters(workload)

    log = simulate(workload, method, shape)

    assert run(workload, shape, naive)[3] == log.order
    assert [method.counter(user) for user in range(4)] == naive.counter


def test_one_request_takes_what_the_formula_says():
    """A prompt of 300 takes chunks of 128, 128, 44; 20 tokens take blocks of 8, 8, 4."""
    log = simulate(stream([(5, 0, 300, 20)]), FirstCome(), PAPER_ENGINE)
    full = 3_000_000 + 20_000 * (128 - 64)
    prefill = 5 + 2 * full + 3_000_000

    assert log.start_ns == [5]
    assert log.first_token_ns == [prefill + 3_000_000]
    assert log.finish_ns == [prefill + 9_000_000]
    assert (log.engines[0].batches, log.engines[0].tokens) == (6, 320)


def test_every_token_is_processed_once():
    """Tokens of all batches are prompts and responses, whatever the method and engines."""
    workload = random_stream(1, users=4)
    tokens = sum(workload.prompt) + sum(workload.response)

    for make in BASELINES.values():
        for engines in (1, 3):
            log = simulate(workload, make(), SHAPES["reserve"], engines)

            assert sum(engine.tokens for engine in log.engines) == tokens
            assert sorted(log.order) == list(range(len(workload)))


def test_the_safe_rule_never_passes_the_capacity():
    """Reserving prompt and predicted response keeps the live KV cache within the capacity."""
    workload = synthetic(0, rate=40.0, count=800)
    safe = simulate(workload, FirstCome(), EngineShape()).engines[0]
    paper = simulate(workload, FirstCome(), PAPER_ENGINE).engines[0]

    assert (safe.overflow_batches, safe.peak_kv <= 8192) == (0, True)
    assert (paper.overflow_batches > 0, paper.peak_kv > 8192) == (True, True)


def test_more_engines_wait_less():
    """Two engines behind one queue finish sooner than one."""
    workload = synthetic(0, rate=50.0, count=400)
    one = simulate(workload, FirstCome(), PAPER_ENGINE, 1)
    two = simulate(workload, FirstCome(), PAPER_ENGINE, 2)

    assert two.end_ns < one.end_ns
    assert sum(two.start_ns) < sum(one.start_ns)


def test_a_method_that_gives_nothing_is_found_out():
    """A run that stops with requests waiting is an error, not a good result."""

    class Never(FirstCome):
        def dispatch(self, engine, now_ns, free_tokens):
            return NOTHING

    with pytest.raises(StuckError, match="200 of 200"):
        simulate(random_stream(0), Never(), SHAPES["live"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"token_budget": 100},
        {"decode_block": 0},
        {"kv_safe_permille": 1001},
        {"kv_capacity": 0},
        {"token_ns": -1},
    ],
)
def test_impossible_shapes_are_refused(wrong):
    """A shape that the arithmetic does not cover is refused."""
    with pytest.raises(ValueError, match="must be"):
        EngineShape(**wrong)
