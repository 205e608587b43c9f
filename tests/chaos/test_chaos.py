"""A short chaotic run with every test run; `python -m tests.chaos.run` makes long ones."""

import os
import random

import pytest

from tests.chaos.run import chaos

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.randrange(1, 10**6)

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(240 + 3 * SECONDS)]


async def test_chaos(tmp_path):
    """Whatever happens, every accepted request ends exactly once, under one lease at a time."""
    print(f"CHAOS_SEED={SEED} CHAOS_SECONDS={SECONDS}")  # noqa: T201 - repeats a failed run
    verdict, done = await chaos(tmp_path, duration_s=SECONDS, seed=SEED)

    assert verdict.problems == []
    assert verdict.accepted == verdict.ended
    assert verdict.accepted > 100
    assert verdict.samples > 0
    assert done["restarts"] + done["calls"] > 0
