"""Crash tests run on one event loop: gRPC serves only one in a process."""

from pathlib import Path

import pytest
import pytest_asyncio

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Runs the tests of this folder on one loop."""
    for item in items:
        if pytest_asyncio.is_async_test(item) and HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
