"""The demo as a newcomer runs it, only shorter: real service, real kill, nothing lost."""

import json
import os
import random
import subprocess
import sys

import pytest


def trace(path, seed: int = 3) -> None:
    """Writes a stream of one flooding user and five light ones, a minute long."""
    dice = random.Random(seed)
    rows = [(dice.uniform(0, 60), "flood", 400, 200) for _ in range(240)]
    rows += [(dice.uniform(0, 60), f"light-{n}", 60, 20) for n in range(5) for _ in range(20)]
    lines = [f"{at:.4f},{user},{prompt},{out}" for at, user, prompt, out in sorted(rows)]
    path.write_text("\n".join(["arrival_s,user_id,prompt_tokens,response_tokens", *lines]) + "\n")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_demo(tmp_path):
    """Light users wait less, nothing is lost or run twice over two kills, pictures are written."""
    trace(tmp_path / "trace.csv")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "scheduler_service", "demo", "--seconds", "5"]
    done = subprocess.run(
        [*command, "--trace", str(tmp_path / "trace.csv"), "--out", str(out)],
        capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "demo.json").read_text())

    assert found["heavy"] == ["flood"]
    for policy in ("fcfs", "fair_qba"):
        run = found[policy]
        assert run["acknowledged"] == found["requests"] == 340
        assert run["lost"] == []
        assert run["run_twice"] == []
        assert run["violations"] == 0
    light = [user for user in found["fcfs"]["users"] if user != "flood"]
    before, after = (
        sum(found[policy]["users"][user]["mean_wait_s"] for user in light)
        for policy in ("fcfs", "fair_qba")
    )
    assert after < before / 2
    gap = found["fair_qba"]["gap"]
    assert gap["violations"] == 0
    assert 0 < gap["gap_micros"] <= gap["bound_micros"]
    for name in ("demo.png", "demo-light.svg", "demo-dark.svg"):
        assert (out / name).stat().st_size > 10_000
    assert "Made worse: flood" in done.stdout or "No user waits longer" in done.stdout
    assert "killed with SIGKILL" in done.stdout


def test_bad_trace_is_refused(tmp_path):
    """A trace that cannot be read is one clear line and exit code 2."""
    bad = tmp_path / "bad.csv"
    bad.write_text("time,prompt\n1,2\n")
    command = [sys.executable, "-m", "scheduler_service", "demo", "--trace", str(bad)]
    wide = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=wide
    )

    assert done.returncode == 2
    assert "no column for" in done.stderr
    assert "Traceback" not in done.stderr
