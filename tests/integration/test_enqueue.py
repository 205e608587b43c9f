"""Enqueue and BatchEnqueue: answers, idempotency, estimates."""

import grpc
import pytest
import pytest_asyncio

from fairsched.v1 import decision_pb2, policy_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.core import commands as c
from tests.support.live import POOL, refused, running, seconds

LONG = policy_pb2.PREDICTED_CLASS_LONG
SHORT = policy_pb2.PREDICTED_CLASS_SHORT
WAITING = decision_pb2.REQUEST_STATE_WAITING


async def test_an_answer_says_what_was_decided(service):
    """The answer names sequence, cost and class, and how many are ahead."""
    first = await service.enqueue("a", cost=7)
    second = await service.enqueue("b", cost=3, predicted_class=LONG)

    assert first.sequence > 0
    assert second.sequence > first.sequence
    assert (first.cost, first.predicted_class, first.requests_ahead) == (7, SHORT, 0)
    assert (second.cost, second.predicted_class, second.requests_ahead) == (3, LONG, 1)
    assert (first.state, first.duplicate) == (WAITING, False)


async def test_a_repeat_gets_the_same_answer(service):
    """The same request twice is one request; both calls get its sequence."""
    first = await service.enqueue("a", cost=7, payload=b"p", metadata={"k": "v"})
    again = await service.enqueue("a", cost=7, payload=b"p", metadata={"k": "other"})

    assert (again.sequence, again.cost, again.duplicate) == (first.sequence, 7, True)
    assert service.engine.state.pools[POOL].waiting == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"cost": 8},
        {"user_id": "other"},
        {"payload": b"q"},
        {"predicted_class": LONG},
        {"required_labels": ["x"]},
        {"prompt_tokens": 1},
        {"kv_tokens": 1},
        {"max_wait": seconds(9)},
    ],
    ids=str,
)
async def test_other_content_under_the_same_id_is_refused(service, changed):
    """An id names one content: another one is refused and changes nothing."""
    await service.enqueue("a", cost=7, payload=b"p")

    refusal = await refused(service.enqueue("a", **{"cost": 7, "payload": b"p", **changed}))

    assert refusal.code is grpc.StatusCode.ALREADY_EXISTS
    assert refusal.reason == "REQUEST_ID_REUSED"
    assert refusal.metadata["requestId"] == "a"
    assert service.engine.state.pools[POOL].waiting == 1


async def test_a_repeat_after_the_end_says_how_it_ended(service):
    """An ended request is remembered: enqueuing it again adds nothing."""
    dispatch = await service.leased("a")
    await service.complete(dispatch.lease_id)

    again = await service.enqueue("a")

    assert again.duplicate
    assert again.state == decision_pb2.REQUEST_STATE_SUCCEEDED
    assert service.engine.state.pools[POOL].waiting == 0


async def test_labels_are_a_set(service):
    """The order and number of repeated labels do not matter."""
    await service.enqueue("a", required_labels=["y", "x", "x"])
    again = await service.enqueue("a", required_labels=["x", "y"])

    assert again.duplicate


async def test_each_item_of_a_batch_has_its_own_result(service):
    """A bad item of a batch spoils no other, and says what is wrong with it."""
    items = [
        service.request("a"),
        service.request("b", cost=-1),
        service.request("a"),
        service.request("c", pool="nowhere"),
        service.request("d"),
    ]
    answer = await service.scheduler.BatchEnqueue(pb.BatchEnqueueRequest(requests=items))

    kinds = [result.WhichOneof("result") for result in answer.results]
    assert kinds == ["response", "error", "response", "error", "response"]
    assert answer.results[2].response.duplicate
    bad = answer.results[1].error
    assert (bad.code, bad.reason) == (grpc.StatusCode.INVALID_ARGUMENT.value[0], "INVALID_FIELDS")
    assert [v.field for v in bad.field_violations] == ["requests[1].cost"]
    unknown = answer.results[3].error
    assert unknown.reason == "POOL_UNKNOWN"
    assert unknown.metadata == {"pool": "nowhere"}


async def test_payload_and_metadata_reach_the_worker_and_no_log(service):
    """A worker gets what was enqueued; the log holds only length and digest."""
    metadata = {"trace": "é", "empty": ""}
    dispatch = await service.leased("a", payload=b"\x00secret", metadata=metadata)

    assert dispatch.payload == b"\x00secret"
    assert dict(dispatch.metadata) == metadata
    groups = service.service.runtime.seen.store.read(0, max_bytes=1 << 20)
    assert all(b"secret" not in group.frame for group in groups)


class TestEstimates:
    """Cost and class from tokens."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def tokens(self, tmp_path):
        """A service whose pool computes costs: 2 units a prompt token, 3 an output token."""
        file = tmp_path / "config.toml"
        file.write_text(
            "[pools.default]\nprompt_cost_milli = 2000\noutput_cost_milli = 3000\n"
            "prior_output_ratio_milli = 500\nshort_cutoff = 100\n"
        )
        async with running(tmp_path / "data", file=file) as live:
            yield live

    @pytest.mark.parametrize(
        ("fields", "cost", "predicted"),
        [
            ({"prompt_tokens": 10, "max_output_tokens": 100}, 20 + 150, SHORT),
            ({"prompt_tokens": 60, "max_output_tokens": 100}, 120 + 150, LONG),
            ({"prompt_tokens": 10, "predicted_output_tokens": 7}, 20 + 21, SHORT),
            (
                {"prompt_tokens": 1, "max_output_tokens": 1000, "predicted_output_tokens": 2},
                2 + 6,
                SHORT,
            ),
            ({"max_output_tokens": 1}, 3, SHORT),
            ({"prompt_tokens": 101}, 202, LONG),
            ({"prompt_tokens": 101, "predicted_class": SHORT}, 202, SHORT),
        ],
        ids=str,
    )
    async def test_cost_and_class_come_from_tokens(self, tokens, fields, cost, predicted):
        """Cost is a * prompt + b * expected output; the class compares the work with tau."""
        answer = await tokens.enqueue("a", **fields)

        assert (answer.cost, answer.predicted_class) == (cost, predicted)

    async def test_a_stated_cost_is_refused_where_the_service_computes(self, tokens):
        """Nobody under-declares a cost in a pool that computes it."""
        refusal = await refused(tokens.enqueue("a", cost=1))

        assert list(refusal.fields) == ["cost"]

    async def test_nobody_rides_free(self, tokens):
        """Neither a cost nor tokens: refused."""
        refusal = await refused(
            tokens.scheduler.Enqueue(
                pb.EnqueueRequest(pool=POOL, user_id="u", request_id="a", cost=0)
            )
        )

        assert list(refusal.fields) == ["cost"]

    async def test_a_cost_past_the_largest_is_refused(self, tokens):
        """A request that comes to more than the largest cost can never be accepted."""
        refusal = await refused(tokens.enqueue("a", prompt_tokens=600_000_000))

        assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
        assert "comes to 1200000000" in refusal.fields["cost"]

    async def test_what_was_learned_is_used(self, tokens):
        """A user's own output ratio counts in its next estimate, and stands in the log."""
        before = (await tokens.enqueue("a", max_output_tokens=1000)).cost
        engine = tokens.engine
        learned = (("", 250, 100_000), ("u", 100, 10**9))
        engine.apply(
            c.UpdateEstimator(now_ns=engine.now_ns(), pool=POOL, ratios=learned, short_cutoff=2000)
        )
        of_user = await tokens.enqueue("b", max_output_tokens=1000)
        of_pool = await tokens.enqueue("c", "stranger", max_output_tokens=1000)

        assert before == 1500
        assert of_user.cost == 300
        assert of_pool.cost == 1125
        assert of_user.predicted_class == SHORT
