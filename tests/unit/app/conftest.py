"""What several tests of the use cases begin with."""

import pytest

from tests.support.engines import running


@pytest.fixture
async def rig():
    """A running engine without pools."""
    async with running() as rig:
        yield rig
