"""A real service for every test, on one event loop: gRPC serves only one in a process."""

from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.child import Child
from tests.support.live import Live, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Runs the tests of this folder on one loop."""
    for item in items:
        if pytest_asyncio.is_async_test(item) and HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session")
async def service(tmp_path) -> Live:
    """A service over an empty data directory, with the pool `default`."""
    async with running(tmp_path / "data") as live:
        yield live


@pytest.fixture
def worked(service):
    """A service that has done some work for three users."""

    async def work():
        for number in range(30):
            await service.enqueue(f"r{number}", f"u{number % 3}", cost=1 + number)
        answer = await service.next(max_dispatches=10)
        for dispatch in answer.dispatches[:5]:
            await service.complete(dispatch.lease_id)
        return service

    return work


@pytest.fixture
def child(tmp_path):
    """Starts services in processes of their own, and ends them all."""
    children = []

    def start(**fields):
        data_dir = fields.pop("data_dir", tmp_path / "data")
        children.append(Child(data_dir, **fields))
        return children[-1]

    yield start
    for one in children:
        one.kill()
