"""The loop's thread goes before the others of the process, where Linux can see to that.

Threads of gRPC wake up for every message and the committer's for every group; whoever wakes up may
take the core from the thread that runs there, which is the loop, many times a millisecond.  Under
SCHED_BATCH they wait for a core that is free, or for their share of this one.  A call takes a tenth
less of the processor for it, and a message of a session about a twentieth.

A thread inherits this from the one that makes it.  So the loop's thread begins as they are to be,
and changes when they have been made; threads that gRPC adds later are made by its own.
"""

import contextlib
import os


def begin() -> bool:
    """Has threads made from now on give way; returns whether that is so.

    Whoever started the process under another policy than the usual one has said what it wants.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return False
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            return True
    return False


def lead() -> None:
    """Has this thread go before those that give way; after `begin`, which said that they do."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
