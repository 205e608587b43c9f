"""A wall clock for child processes that a test steps forward and back while they run.

Only the wall clock moves, for Python, gRPC and SQLite alike; the monotonic clock goes on, as it
does when a machine's clock is set.  Needs a C compiler.
"""

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = shutil.which("cc")
_SECOND_NS = 1_000_000_000


class WallClock:
    """The wall clock of every child that is started with its `environment`.

    Args:
        folder: Where its files go; they must outlive the children.

    Attributes:
        offset_s: By how much it differs from the machine's, seconds.
    """

    def __init__(self, folder: Path) -> None:
        assert COMPILER is not None, "needs a C compiler"
        library, file = folder / "wall_clock.so", folder / "wall_clock"
        command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._offset = mmap.mmap(opened.fileno(), 8)
        self.offset_s = 0.0
        self.environment = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(file)}

    def step(self, seconds: float) -> None:
        """Sets the clock forward, or back if negative."""
        self.offset_s += seconds
        self._offset[:] = struct.pack("=q", round(self.offset_s * _SECOND_NS))
