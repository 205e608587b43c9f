"""The real service in a process of its own, and clients of it on one event loop."""

import itertools
from pathlib import Path

import pytest
import pytest_asyncio

from fairsched import AsyncFairsched, Fairsched
from fairsched.v1 import admin_service_pb2, policy_pb2
from tests.clients.service_process import ServiceProcess

HERE = Path(__file__).parent
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items):
    """Runs the tests of this folder on one loop: gRPC serves only one in a process."""
    for item in items:
        if pytest_asyncio.is_async_test(item) and HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory):
    """One service for all tests that do not stop it."""
    process = ServiceProcess(tmp_path_factory.mktemp("shared-service")).start()
    yield process
    code = process.stop()
    assert code == 0, process.log()


@pytest.fixture
def target(shared_service) -> str:
    """Where the shared service listens."""
    return shared_service.target


@pytest.fixture
def own_service(tmp_path):
    """A service that the test may kill and start again."""
    process = ServiceProcess(tmp_path / "own-service").start()
    yield process
    process.ensure_gone()


@pytest.fixture
def make_pool(target):
    """Returns a function that makes a pool with a policy of its own in the shared service."""

    def make(**fields) -> str:
        name = f"pool-{next(_numbers)}"
        fields.setdefault("cost_source", policy_pb2.COST_SOURCE_CALLER)
        policy = policy_pb2.PoolPolicy(**fields)
        with Fairsched(target) as client:
            request = admin_service_pb2.CreatePoolRequest(pool=name, policy=policy)
            client.admin.CreatePool(request, timeout=20)
        return name

    return make


@pytest.fixture
def pool(make_pool) -> str:
    """A pool of this test alone."""
    return make_pool()


@pytest.fixture
def gate(make_pool) -> str:
    """A pool of this test alone that is a gate for one request at once."""
    return make_pool(mode=policy_pb2.POOL_MODE_GATE, gate_max_in_flight=1)


@pytest_asyncio.fixture(loop_scope="session")
async def client(target):
    """An asynchronous client of the shared service."""
    async with AsyncFairsched(target) as made:
        yield made


@pytest.fixture(params=[False, True], ids=["calls", "stream"])
def stream(request) -> bool:
    """Whether the gateway says everything over one stream."""
    return request.param
