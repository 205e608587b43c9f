"""Bad input of every field: INVALID_ARGUMENT that names it, and the next good call works."""

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from fairsched.v1 import decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from tests.support.live import POOL, refused, running, seconds

BAD_IDS = ["", "x" * 257, "ä" * 129, "a\x00b", "a\nb", "a\x7fb", "a\x85b"]
BAD_OPTIONAL_IDS = BAD_IDS[1:]
INT_MAX, INT_MIN = 2**63 - 1, -(2**63)
BAD_TOKENS = [-1, 10**9 + 1, INT_MAX, INT_MIN]
BAD_LEASES = [seconds(0), seconds(0.999), seconds(-5), seconds(86_401), Duration(nanos=2 * 10**9)]
BAD_WAITS = [seconds(-0.001), seconds(3601), Duration(seconds=1, nanos=-1)]
BAD_LABELS = [["a\nb"], [""], ["x" * 257], [str(n) for n in range(17)]]

ENQUEUE = {"pool": POOL, "user_id": "u", "request_id": "r", "cost": 1}
NEXT = {"pools": [POOL], "worker_id": "w"}
COMPLETE = {"lease_id": "l", "outcome": decision_pb2.OUTCOME_SUCCEEDED}
RENEW = {"renewals": [pb.LeaseRenewal(lease_id="l")]}
REGISTER = {"worker_id": "w", "pools": [POOL]}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def service(tmp_path_factory):
    """One service for all of this: bad input leaves nothing behind."""
    async with running(tmp_path_factory.mktemp("bad") / "data") as live:
        yield live


def _cases(rpc, request, base, fields):
    for field, values in fields.items():
        for value in values:
            label = f"{rpc}.{field}={str(value)[:20]!r}"
            yield pytest.param(rpc, request, base, field, value, id=label)


def _offers(values, field):
    return [decision_pb2.Offer(**{field: value}) for value in values]


CASES = [
    *_cases(
        "Enqueue",
        pb.EnqueueRequest,
        ENQUEUE,
        {
            "pool": BAD_IDS,
            "user_id": BAD_IDS,
            "request_id": BAD_IDS,
            "cost": [-1, 10**9 + 1, INT_MAX, INT_MIN],
            "prompt_tokens": BAD_TOKENS,
            "max_output_tokens": BAD_TOKENS,
            "predicted_output_tokens": BAD_TOKENS,
            "kv_tokens": BAD_TOKENS,
            "predicted_class": [3, 99, -1],
            "max_wait": [seconds(0), seconds(0.0009), seconds(86_401), seconds(-1)],
            "required_labels": BAD_LABELS,
            "payload": [b"x" * 65_537],
            "metadata": [
                {str(n): "" for n in range(17)},
                {"": "x"},
                {"k": "x" * 17_000},
                {"k" * 257: ""},
            ],
        },
    ),
    *_cases(
        "NextDispatch",
        pb.NextDispatchRequest,
        NEXT,
        {
            "pools": [[], ["a\nb"], [POOL, POOL], [f"p{n}" for n in range(65)]],
            "worker_id": [*BAD_IDS, "session-x"],
            "session_id": BAD_OPTIONAL_IDS,
            "max_dispatches": [-1, 1001, INT_MAX],
            "wait_duration": BAD_WAITS,
            "lease_duration": BAD_LEASES,
            "idempotency_key": BAD_OPTIONAL_IDS,
            "completions": [[pb.CompleteRequest(**COMPLETE)] * 1001],
        },
    ),
    *_cases(
        "Complete",
        pb.CompleteRequest,
        COMPLETE,
        {
            "lease_id": BAD_IDS,
            "outcome": [0, 4, -1],
            "error": ["x" * 257, "ä" * 129],
            "session_id": BAD_OPTIONAL_IDS,
        },
    ),
    *_cases(
        "RenewLease",
        pb.RenewLeaseRequest,
        RENEW,
        {
            "session_id": BAD_OPTIONAL_IDS,
            "worker_id": BAD_OPTIONAL_IDS,
            "renewals": [[], [pb.LeaseRenewal(lease_id="l")] * 1001],
            "lease_duration": BAD_LEASES,
        },
    ),
    *_cases(
        "Cancel",
        pb.CancelRequest,
        {"pool": POOL, "request_id": "r"},
        {
            "pool": BAD_IDS,
            "request_id": BAD_IDS,
            "reason": ["lower", "A B", "X" * 65, "É"],
        },
    ),
    *_cases(
        "GetRequest",
        pb.GetRequestRequest,
        {"pool": POOL, "request_id": "r"},
        {
            "pool": BAD_IDS,
            "request_id": BAD_IDS,
            "wait_duration": BAD_WAITS,
            "known_state": [12, -1],
        },
    ),
    *_cases(
        "RegisterWorker",
        pb.RegisterWorkerRequest,
        REGISTER,
        {
            "worker_id": [*BAD_IDS, "session-x"],
            "pools": [[], [""], [POOL, POOL], [f"p{n}" for n in range(65)]],
            "endpoint": ["x" * 1025, "http://a\nb"],
        },
    ),
    *_cases("DrainWorker", pb.DrainWorkerRequest, {"worker_id": "w"}, {"worker_id": BAD_IDS}),
    *_cases(
        "ListWorkers",
        pb.ListWorkersRequest,
        {},
        {
            "pool": BAD_OPTIONAL_IDS,
            "page_size": [-1, 1001, INT_MAX],
            "page_token": ["?", "not base64!", "YWJj"],
        },
    ),
    *_cases("BatchEnqueue", pb.BatchEnqueueRequest, {}, {"requests": [[]]}),
    *_cases("BatchComplete", pb.BatchCompleteRequest, {}, {"completions": [[]]}),
]


@pytest.mark.parametrize(("rpc", "request_type", "base", "field", "value"), CASES)
async def test_a_bad_field_is_named(service, rpc, request_type, base, field, value):
    """The error says which field is bad; nothing is decided, nothing fails inside."""
    before = service.engine.state.sequence
    fields = {**base, field: value}
    call = getattr(service.scheduler, rpc)

    refusal = await refused(call(request_type(**fields)))

    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "INVALID_FIELDS"
    named = {name.split(".")[0].split("[")[0] for name in refusal.fields}
    assert named == {field}
    assert field in refusal.message
    assert service.engine.state.sequence == before
    assert service.reported("rpc.failed") == []
    assert (await service.enqueue()).sequence > before


@pytest.mark.parametrize("rpc", ["NextDispatch", "RegisterWorker"])
@pytest.mark.parametrize(
    ("offer", "field"),
    [
        *((offer, "free_tokens") for offer in _offers(BAD_TOKENS, "free_tokens")),
        *((offer, "total_tokens") for offer in _offers(BAD_TOKENS, "total_tokens")),
        *((offer, "accepted_classes[0]") for offer in _offers([[0], [3]], "accepted_classes")),
        *((offer, "labels") for offer in _offers(BAD_LABELS[3:], "labels")),
        *((offer, "labels[0]") for offer in _offers(BAD_LABELS[:3], "labels")),
        *((offer, "max_leases") for offer in _offers([-1, 10**9 + 1], "max_leases")),
    ],
    ids=str,
)
async def test_a_bad_offer_is_named(service, rpc, offer, field):
    """Whatever is wrong in an offer is named by its path."""
    types = {"NextDispatch": (pb.NextDispatchRequest, NEXT)}
    request_type, base = types.get(rpc, (pb.RegisterWorkerRequest, REGISTER))

    refusal = await refused(getattr(service.scheduler, rpc)(request_type(**base, offer=offer)))

    assert list(refusal.fields) == [f"offer.{field}"]


@pytest.mark.parametrize("value", BAD_TOKENS)
async def test_bad_usage_is_named(service, value):
    """Real usage has a range like everything else."""
    usage = pb.Usage(prompt_tokens=value, output_tokens=value)
    refusal = await refused(service.scheduler.Complete(pb.CompleteRequest(**COMPLETE, usage=usage)))

    assert set(refusal.fields) == {"usage.prompt_tokens", "usage.output_tokens"}


async def test_a_bad_renewal_is_named(service):
    """The item of a renewal that is bad is named by its place."""
    renewals = [pb.LeaseRenewal(lease_id="l"), pb.LeaseRenewal(lease_id="", progress=7)]
    refusal = await refused(service.scheduler.RenewLease(pb.RenewLeaseRequest(renewals=renewals)))

    assert set(refusal.fields) == {"renewals[1].lease_id", "renewals[1].progress"}


async def test_every_bad_field_is_named_at_once(service):
    """A caller need not fix a call field by field."""
    bad = pb.EnqueueRequest(
        pool="a\nb",
        user_id="",
        request_id="x" * 300,
        cost=-1,
        prompt_tokens=-1,
        kv_tokens=-1,
        predicted_class=9,
        max_wait=seconds(-1),
        required_labels=["", "ok"],
        payload=b"x" * 70_000,
    )
    refusal = await refused(service.scheduler.Enqueue(bad))

    assert set(refusal.fields) == {
        "pool",
        "user_id",
        "request_id",
        "cost",
        "prompt_tokens",
        "kv_tokens",
        "predicted_class",
        "max_wait",
        "required_labels[0]",
        "payload",
    }


async def test_acquire_names_bad_fields(service):
    """A stream says no as a call does, with the path of the field."""
    bad = pb.AcquireRequest(request=service.request(cost=-1), lease_duration=seconds(0))
    refusal = await refused(service.scheduler.Acquire(bad).read())
    empty = await refused(service.scheduler.Acquire(pb.AcquireRequest()).read())

    assert list(refusal.fields) == ["lease_duration"]
    assert list(empty.fields) == ["request"]
    bad.ClearField("lease_duration")
    nested = await refused(service.scheduler.Acquire(bad).read())
    assert list(nested.fields) == ["request.cost"]


@pytest.mark.parametrize(
    "user_id",
    ["a:b", "a/b", "a|b", "%3A", "..", " ", "ä", "e\u0301", "\u00e9", "🙂", "مرحبا", "<script>"],
)
async def test_ids_of_any_letters_are_taken_as_they_are(service, user_id):
    """Ids are compared byte by byte and come back unchanged."""
    await service.enqueue(user_id, user_id)
    found = await service.state(user_id)

    assert (found.request_id, found.user_id) == (user_id, user_id)
    assert user_id in service.engine.state.pools[POOL].flows


async def test_ids_that_a_separator_would_mix_up_stay_apart(service):
    """User a:b with c is not user a with b:c, and composed is not decomposed."""
    users = {"A:b": "c", "A": "b:c", "\u00e0": "1", "a\u0300": "2"}
    for user_id, request_id in users.items():
        await service.enqueue(request_id, user_id)

    assert users.keys() <= service.engine.state.pools[POOL].flows.keys()


@pytest.mark.parametrize("size", [256, 1])
async def test_ids_up_to_their_limit_are_taken(service, size):
    """Exactly the limit is good."""
    text = "x" * size

    assert (await service.enqueue(text, text)).sequence > 0


async def test_a_message_past_the_limit_is_refused(service):
    """A message larger than the service takes is refused by the transport, and it goes on."""
    huge = service.request(payload=b"x" * (5 << 20))
    refusal = await refused(service.scheduler.Enqueue(huge))

    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await service.enqueue()).sequence > 0
