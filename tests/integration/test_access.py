"""Who may do what: tokens, roles, limits and pseudonyms, over real gRPC."""

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fairsched.v1 import (
    admin_service_pb2,
    audit_service_pb2,
    decision_pb2,
    scheduler_service_pb2,
)
from fairsched.v1 import scheduler_service_pb2 as pb
from scheduler_service.rpc.identity import ROLES_BY_RPC, Role
from scheduler_service.rpc.security import new_token
from tests.support.live import POOL, refused, running

SERVICES = {
    "scheduler": (scheduler_service_pb2, "SchedulerService"),
    "audit": (audit_service_pb2, "AuditService"),
    "admin": (admin_service_pb2, "AdminService"),
}

METHODS = [
    (stub, method)
    for stub, (module, service) in SERVICES.items()
    for method in module.DESCRIPTOR.services_by_name[service].methods
]

CALLERS = {
    "gateway": 'roles = ["gateway"]\nstates_cost = true',
    "worker": 'roles = ["worker"]',
    "auditor": 'roles = ["auditor"]',
    "admin": 'roles = ["admin"]',
    "acme": 'roles = ["gateway", "auditor", "admin"]\nstates_cost = true\n'
    'pools = ["default"]\nuser_prefixes = ["acme/"]',
    "poor": 'roles = ["gateway"]',
    "far": 'roles = ["worker"]\npools = ["other"]\nendpoints = ["http://10."]',
}
TOKENS = {name: new_token() for name in CALLERS}
CREDENTIALS = "".join(
    f'[[token]]\nname = "{name}"\nsha256 = "{TOKENS[name][1]}"\n{rest}\n'
    for name, rest in CALLERS.items()
)


def _as(name: str) -> dict[str, object]:
    """Returns the metadata of a caller."""
    return {"metadata": [("authorization", f"Bearer {TOKENS[name][0]}")]}


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(tmp_path):
    """A service that asks who calls."""
    file = tmp_path / "credentials.toml"
    file.write_text(CREDENTIALS)
    async with running(tmp_path / "data", credentials_file=file) as live:
        yield live


async def _code_of(live, stub, method, **options):
    """Calls a method with an empty message and returns how it ended."""
    request = getattr(SERVICES[stub][0], method.input_type.name)()
    call = getattr(getattr(live, stub), method.name)
    try:
        if method.client_streaming:
            stream = call(iter([request]), timeout=5, **options)
            await stream.read()
        elif method.server_streaming:
            stream = call(request, timeout=0.5, **options)
            await stream.read()
        else:
            await call(request, timeout=5, **options)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def test_the_table_names_every_call():
    """The table of roles has an entry for every RPC there is, and no other."""
    assert set(ROLES_BY_RPC) == {method.name for _, method in METHODS}


@pytest.mark.parametrize("role", [role.value for role in Role])
async def test_role_matrix(guarded, role):
    """Every call is refused to exactly the roles that the table leaves out."""
    for stub, method in METHODS:
        code = await _code_of(guarded, stub, method, **_as(role))
        denied = code is grpc.StatusCode.PERMISSION_DENIED

        assert denied == (Role(role) not in ROLES_BY_RPC[method.name]), method.name
        assert code not in {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ([], "TOKEN_MISSING"),
        ([("authorization", "Bearer nonsense")], "TOKEN_UNKNOWN"),
        ([("authorization", "Basic abc")], "TOKEN_UNKNOWN"),
    ],
    ids=str,
)
async def test_nobody_unknown_gets_in(guarded, metadata, reason):
    """Without a known token every call is UNAUTHENTICATED, and says why."""
    for stub, method in METHODS:
        code = await _code_of(guarded, stub, method, metadata=metadata)
        assert code is grpc.StatusCode.UNAUTHENTICATED, method.name
    request = pb.CancelRequest(pool=POOL, request_id="x")
    refusal = await refused(guarded.scheduler.Cancel(request, metadata=metadata))

    assert refusal.reason == reason


async def test_health_is_open(guarded):
    """Health needs no token: load balancers have none."""
    stub = health_pb2_grpc.HealthStub(guarded.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest())

    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def _enqueue(live, name, request_id="r", user_id="acme/u", pool=POOL, **fields):
    request = pb.EnqueueRequest(
        pool=pool, user_id=user_id, request_id=request_id, **({"cost": 1} | fields)
    )
    return live.scheduler.Enqueue(request, **_as(name))


async def test_the_log_names_the_caller(guarded):
    """Decisions keep the authenticated name of whoever caused them."""
    await _enqueue(guarded, "gateway")
    await guarded.admin.Pause(admin_service_pb2.PauseRequest(pool=POOL), **_as("admin"))
    page = await guarded.audit.ListDecisions(
        audit_service_pb2.ListDecisionsRequest(page_size=1000), **_as("auditor")
    )
    peers = {decision_pb2.DecisionKind.Name(x.kind): x.peer for x in page.decisions}

    assert peers["DECISION_KIND_ACCEPTED"] == "gateway"
    assert peers["DECISION_KIND_PAUSED"] == "admin"
    assert peers["DECISION_KIND_POOL_CONFIGURED"] == "config"


async def test_confined_to_users(guarded):
    """A caller confined to a prefix names no other user and learns nothing about their requests."""
    await _enqueue(guarded, "gateway", "theirs", "bob")
    await _enqueue(guarded, "acme", "ours")
    denied = await refused(_enqueue(guarded, "acme", "x", "bob"))
    key = {"pool": POOL, "request_id": "theirs"}
    hidden = [
        await refused(guarded.scheduler.GetRequest(pb.GetRequestRequest(**key), **_as("acme"))),
        await refused(guarded.scheduler.Cancel(pb.CancelRequest(**key), **_as("acme"))),
        await refused(
            guarded.audit.ExplainDecision(
                audit_service_pb2.ExplainDecisionRequest(
                    request=audit_service_pb2.RequestKey(**key)
                ),
                **_as("acme"),
            )
        ),
    ]
    absent = await refused(
        guarded.scheduler.GetRequest(
            pb.GetRequestRequest(pool=POOL, request_id="nothing"), **_as("acme")
        )
    )
    users = await guarded.admin.ListUsers(
        admin_service_pb2.ListUsersRequest(pool=POOL), **_as("acme")
    )
    requests = await guarded.admin.ListRequests(
        admin_service_pb2.ListRequestsRequest(pool=POOL), **_as("acme")
    )

    assert (denied.code, denied.reason) == (grpc.StatusCode.PERMISSION_DENIED, "USER_DENIED")
    for refusal in hidden:
        assert (refusal.code, refusal.reason) == (absent.code, absent.reason)
        assert refusal.message == absent.message.replace("nothing", "theirs")
    assert [u.user_id for u in users.users] == ["acme/u"]
    assert [r.request_id for r in requests.requests] == ["ours"]


async def test_a_confined_auditor_sees_its_part(guarded):
    """A confined auditor gets only decisions about its users, without others' names or records."""
    await _enqueue(guarded, "gateway", "theirs", "bob", cost=5)
    await _enqueue(guarded, "acme", "ours")
    await guarded.scheduler.NextDispatch(
        pb.NextDispatchRequest(pools=[POOL], worker_id="w", max_dispatches=2), **_as("worker")
    )
    list_ = guarded.audit.ListDecisions
    whole = await list_(audit_service_pb2.ListDecisionsRequest(), **_as("auditor"))
    page = await list_(audit_service_pb2.ListDecisionsRequest(page_size=1000), **_as("acme"))
    records = await refused(
        list_(audit_service_pb2.ListDecisionsRequest(include_records=True), **_as("acme"))
    )
    dispatch = next(x for x in page.decisions if x.HasField("dispatched"))
    explained = await guarded.audit.ExplainDecision(
        audit_service_pb2.ExplainDecisionRequest(sequence=dispatch.sequence), **_as("acme")
    )
    others = await list_(audit_service_pb2.ListDecisionsRequest(), **_as("auditor"))
    theirs = next(x for x in others.decisions if x.user_id == "bob")
    hidden = await refused(
        guarded.audit.ExplainDecision(
            audit_service_pb2.ExplainDecisionRequest(sequence=theirs.sequence), **_as("acme")
        )
    )

    assert {x.user_id for x in page.decisions} == {"acme/u"}
    assert b"bob" not in page.SerializeToString()
    assert b"bob" not in explained.SerializeToString()
    assert list(others.decisions) == list(whole.decisions), "what is hidden is hidden in a copy"
    assert any(x.dispatched.runner_up for x in whole.decisions)
    assert records.reason == "RECORDS_DENIED"
    assert hidden.reason == "SEQUENCE_UNKNOWN"


async def test_confined_to_pools(guarded):
    """A caller confined to pools names no other, and lists show it only its own."""
    create = admin_service_pb2.CreatePoolRequest(pool="other")
    await guarded.admin.CreatePool(create, **_as("admin"))
    enqueue = await refused(_enqueue(guarded, "acme", pool="other"))
    take = await refused(
        guarded.scheduler.NextDispatch(
            pb.NextDispatchRequest(pools=[POOL], worker_id="w"), **_as("far")
        )
    )
    register = pb.RegisterWorkerRequest(worker_id="w", pools=["other"], endpoint="http://evil/")
    endpoint = await refused(guarded.scheduler.RegisterWorker(register, **_as("far")))
    stats = await guarded.admin.GetStats(admin_service_pb2.GetStatsRequest(), **_as("acme"))
    pause = await refused(
        guarded.admin.Pause(admin_service_pb2.PauseRequest(pool=POOL), **_as("acme"))
    )

    assert enqueue.reason == take.reason == "POOL_DENIED"
    assert endpoint.reason == "ENDPOINT_DENIED"
    assert [p.pool for p in stats.pools] == [POOL]
    assert pause.reason == "USER_DENIED"


async def test_costs_are_for_the_trusted(guarded):
    """Where callers state costs, only a caller that is trusted with it may."""
    refusal = await refused(_enqueue(guarded, "poor"))
    answer = await _enqueue(guarded, "poor", cost=0, prompt_tokens=5)

    assert refusal.reason == "COST_DENIED"
    assert answer.cost == 5


async def test_pseudonyms(tmp_path):
    """With `hmac` no trace of a user id is left in the log, and callers go on by the real ids."""
    key = tmp_path / "key"
    key.write_bytes(b"secret-key-of-32-bytes-or-so-....")
    options = {"user_id_mode": "hmac", "user_id_key_file": key}
    async with running(tmp_path / "data", **options) as live:
        await live.enqueue("r0", "alice@example.com")
        await live.admin.SetUser(
            admin_service_pb2.SetUserRequest(
                pool=POOL, user_id="alice@example.com", weight_milli=2000
            )
        )
        user = (
            await live.admin.GetUser(
                admin_service_pb2.GetUserRequest(pool=POOL, user_id="alice@example.com")
            )
        ).user
        by_pseudonym = (
            await live.admin.GetUser(
                admin_service_pb2.GetUserRequest(pool=POOL, user_id=user.user_id)
            )
        ).user
        page = await live.audit.ListDecisions(
            audit_service_pb2.ListDecisionsRequest(
                filter=audit_service_pb2.DecisionFilter(user_ids=["alice@example.com"])
            )
        )
        frames = b"".join(
            group.frame for group in live.service.runtime.seen.store.read(0, max_bytes=1 << 20)
        )
    files = b"".join(p.read_bytes() for p in (tmp_path / "data").rglob("*") if p.is_file())

    assert (user.weight_milli, user.waiting_count) == (2000, 1)
    assert by_pseudonym.user_id == user.user_id != "alice@example.com"
    assert [x.request_id for x in page.decisions] == ["r0", ""]
    assert b"alice" not in frames + files
