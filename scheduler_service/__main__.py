"""The program `fairsched`, also as `python -m scheduler_service`.

As the first process of a container it takes SIGTERM before it loads anything: the kernel drops
signals for which such a process has no handler, and a stop during the start would have to wait for
SIGKILL.  The commands put their own handlers in its place.
"""

import os
import signal
import sys
from types import FrameType


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def main() -> None:
    """Runs the command line."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    if sys.argv[1:2] != ["serve"]:
        # People are told in our words why a connection failed; gRPC reads this as it is loaded.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from scheduler_service import cli  # noqa: PLC0415 - takes a second: SIGTERM is heeded before

    cli.main()


if __name__ == "__main__":
    main()
