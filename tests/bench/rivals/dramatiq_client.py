"""Dramatiq on Redis: python -m tests.bench.rivals.dramatiq_client MODE PORT …

rate PORT COUNT              producer here, worker (8 threads) in a process of its own
latency PORT COUNT           one message at a time, from send to its start
replay PORT TRACE SERVERS UNIT
"""

import subprocess
import sys
import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.bench.rivals import common

_THREADS = 8


def broker_on(port: int) -> RedisBroker:
    """Returns a broker without the middleware that a bare queue does not need."""
    broker = RedisBroker(port=port, middleware=[])
    dramatiq.set_broker(broker)
    return broker


def work(port: int, count: int) -> None:
    """Runs messages until `count` are done."""
    broker, finished, lock = broker_on(port), threading.Event(), threading.Lock()
    done = 0

    def job(body: str) -> None:
        nonlocal done
        with lock:
            done += 1
            if done == count:
                finished.set()

    dramatiq.actor(job, broker=broker, actor_name="job")
    worker = dramatiq.Worker(broker, worker_threads=_THREADS)
    worker.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    finished.wait()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    worker.stop()


def rate(port: int, count: int) -> None:
    """Measures lifecycles a second: from the first send to the last message done."""
    broker = broker_on(port)
    job = dramatiq.actor(lambda body: None, broker=broker, actor_name="job")
    words = [
        sys.executable,
        "-m",
        "tests.bench.rivals.dramatiq_client",
        "work",
        str(port),
        str(count),
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        began = time.perf_counter()
        for _ in range(count):
            job.send("x" * 96)
        added = time.perf_counter()
        worker.stdout.readline()
        ended = time.perf_counter()
    common.say(rate=count / (ended - began), enqueue_rate=count / (added - began))


def latency(port: int, count: int) -> None:
    """Measures the way of one message through an idle queue."""
    broker, started = broker_on(port), threading.Event()
    job = dramatiq.actor(lambda body: started.set(), broker=broker, actor_name="job")
    worker = dramatiq.Worker(broker, worker_threads=_THREADS)
    worker.start()
    times = []
    for _ in range(count):
        started.clear()
        began = time.perf_counter()
        job.send("x")
        started.wait()
        times.append(time.perf_counter() - began)
        time.sleep(0.01)
    worker.stop()
    common.say(**common.latencies(times))


def replay(port: int, trace: str, servers: int, unit: float) -> None:
    """Plays a trace: first in, first out, as far as prefetching allows."""
    broker, finished, lock = broker_on(port), threading.Event(), threading.Lock()
    arrivals = common.read_trace(trace)
    records: list[common.Record] = []
    zero = time.perf_counter()

    def job(index: int) -> None:
        started = time.perf_counter() - zero
        time.sleep(arrivals[index].cost * unit)
        with lock:
            records.append((index, started, time.perf_counter() - zero))
            if len(records) == len(arrivals):
                finished.set()

    actor = dramatiq.actor(job, broker=broker, actor_name="job")
    worker = dramatiq.Worker(broker, worker_threads=servers)
    worker.start()
    for arrival in arrivals:
        time.sleep(max(0.0, arrival.at_seconds - (time.perf_counter() - zero)))
        actor.send(arrival.index)
    finished.wait()
    worker.stop()
    common.say(records=records)


if __name__ == "__main__":
    _, mode_, port_, *rest_ = sys.argv
    {
        "work": lambda: work(int(port_), int(rest_[0])),
        "rate": lambda: rate(int(port_), int(rest_[0])),
        "latency": lambda: latency(int(port_), int(rest_[0])),
        "replay": lambda: replay(int(port_), rest_[0], int(rest_[1]), float(rest_[2])),
    }[mode_]()
