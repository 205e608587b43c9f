"""Running the writing process, killing it, and reading what it acknowledged."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
    """
    with running(arguments) as process:
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
        process.wait()
    return last_acknowledged("".join(read))
