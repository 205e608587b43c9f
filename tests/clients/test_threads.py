"""The threads of a running service: which goes before which."""

import os
import threading
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux only")
def test_threads_of_grpc_give_way_to_the_loop(shared_service):
    """Once it serves, the loop's thread is as usual and those of gRPC wait for a free core."""
    ticking = threading.Event()
    for _ in range(400):
        if os.sched_getscheduler(shared_service.pid) == os.SCHED_OTHER:
            break
        ticking.wait(0.05)  # it has begun to listen, and nothing says when it leads
    tasks = Path(f"/proc/{shared_service.pid}/task").iterdir()
    of_grpc = [int(x.name) for x in tasks if (x / "comm").read_text() == "event_engine\n"]

    assert os.sched_getscheduler(shared_service.pid) == os.SCHED_OTHER
    assert {os.sched_getscheduler(number) for number in of_grpc} == {os.SCHED_BATCH}
