"""Which threads give way to the loop: asked of a process of its own, whose policy may change."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")

_PROGRAM = """
import os, threading
from scheduler_service.server import threads

def policy():
    found = []
    thread = threading.Thread(target=lambda: found.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()
    return found[0]

{before}
print(threads.begin(), policy())
{lead}
print(os.sched_getscheduler(0), policy())
"""


def _run(before="", lead="threads.lead()"):
    program = _PROGRAM.format(before=before, lead=lead)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.split()


def test_threads_made_in_between_give_way():
    """Those made after the loop's thread leads are as usual again."""
    batch, other = str(os.SCHED_BATCH), str(os.SCHED_OTHER)

    assert _run() == ["True", batch, other, other]


def test_a_policy_that_somebody_chose_stays():
    """Who started the process idle is not overruled."""
    chosen = "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))"
    idle = str(os.SCHED_IDLE)

    assert _run(chosen, lead="") == ["False", idle, idle, idle]


def test_a_system_that_refuses_is_no_problem():
    """Nothing changes, and nothing is raised."""
    refusing = "def no(*_): raise PermissionError\nos.sched_setscheduler = no"
    other = str(os.SCHED_OTHER)

    assert _run(refusing, lead="") == ["False", other, other, other]
