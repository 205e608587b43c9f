"""A real service for the reports that can be seen from outside, on the session's one loop."""

from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.live import Live, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Runs the tests of this folder on one loop: gRPC serves only one in a process."""
    for item in items:
        if pytest_asyncio.is_async_test(item) and HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session")
async def service(tmp_path) -> Live:
    """A service over an empty data directory, with the pool `default`."""
    async with running(tmp_path / "data") as live:
        yield live
