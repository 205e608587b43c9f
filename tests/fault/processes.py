"""Running the writing process, killing it, and reading what it acknowledged."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""A writer that does not write what is waited for is not waited for any longer."""


def command(directory, seed: int, **options: object) -> list[str]:
    """Returns the command line of a writer."""
    arguments = [sys.executable, "-m", "tests.fault.child", str(directory.path)]
    for name, value in {"seed": seed, **options}.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


def last_acknowledged(output: str) -> int:
    """Returns the last sequence acknowledged in full lines of output."""
    lines = output.split("\n")[:-1]
    return max((int(line.split()[1]) for line in lines if line.startswith("ack ")), default=0)


@contextlib.contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Runs a process and makes sure that it is gone at the end."""
    process = subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def kill_after(arguments: list[str], lines: int, *, marker: str = "") -> int:
    """Runs a writer and kills it when it has written so many lines.

    Args:
        arguments: Its command line.
        lines: Lines to wait for, at least 1.
        marker: Counting begins with the first line that starts with this.

    Returns:
        What it acknowledged.

    Raises:
        AssertionError: It failed by itself before, or did not write that much for a minute.
    """
    with running(arguments) as process:
        patience = threading.Timer(PATIENCE_S, process.kill)
        patience.start()
        read = []
        counted = 0
        for line in process.stdout:
            read.append(line)
            if counted or line.startswith(marker):
                counted += 1
            if counted == lines:
                process.kill()
                break
        read.append(process.stdout.read())
        patience.cancel()
        code = process.wait()
    assert counted == lines or code == 0, f"{counted} of {lines} lines, then it ended with {code}"
    return last_acknowledged("".join(read))
