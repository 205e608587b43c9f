"""Settings shared by all tests: Hypothesis profiles by `HYPOTHESIS_PROFILE` (dev, ci, nightly)."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from scheduler_service import core

settings.register_profile("dev", max_examples=100, deadline=None)
settings.register_profile(
    "ci",
    max_examples=500,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Refuses to test what was compiled from another source, or was not compiled."""
    package = Path(core.__path__[0]).parent
    for library in package.glob("*/*.so"):
        source = library.with_name(f"{library.name.partition('.')[0]}.py")
        if not source.exists() or library.stat().st_mtime < source.stat().st_mtime:
            pytest.exit(f"{library.name} is not of its source: make compile, or make clean", 4)
    if "FAIRSCHED_TEST_COMPILED" in os.environ and not core.COMPILED:
        pytest.exit("the core is not compiled", 4)
