"""The core alone: dispatches a second, with decision record, chain hash and band check.

    python -m tests.bench.core --users 100,1000,100000 --presets fair_qba,sfq

Every dispatch is asked for, decided, folded into the state, encoded and hashed.  Enqueue and
Complete are measured apart.  "best" is the fastest stretch of 500 dispatches: on a machine that is
shared it says more about the code than the mean does.
"""

import argparse
import gc
import hashlib
import json
import random
import resource
import sys
import time
from dataclasses import asdict, dataclass

import msgspec

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.completion import Complete
from scheduler_service.core.policy import PRESETS, PredictedClass
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State

STRETCH = 500
BATCH = 10
SHORT_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Result:
    """Microseconds a step; `best_us` over the fastest stretch of dispatches."""

    preset: str
    users: int
    backlog: int
    dispatch_us: float
    best_us: float
    enqueue_us: float
    complete_us: float
    bytes_a_request: float

    @property
    def dispatches_per_second(self) -> float:
        """Rate over the whole run."""
        return 1e6 / self.dispatch_us


def measure(
    preset: str,
    users: int,
    *,
    dispatches: int,
    backlog: int,
    seed: int,
    slack_milli: int | None = None,
) -> Result:
    """Fills a pool with `backlog` requests of `users` users and dispatches `dispatches` of them."""
    rng = random.Random(seed)
    state, log, now_ns = State(), [], 10**18
    policy = msgspec.structs.replace(
        PRESETS[preset], max_waiting=10**8, max_waiting_per_user=10**8, max_users=10**8
    )
    if slack_milli is not None:
        policy = msgspec.structs.replace(policy, slack_milli=slack_milli)
    configured = c.ConfigurePool(
        now_ns=now_ns, pool="p", policy=policy, policy_digest="0" * 16, create=True
    )
    apply(state, configured, log)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    for number in range(backlog):
        now_ns += 1000
        log.clear()
        short = rng.random() < SHORT_SHARE
        apply(
            state,
            c.Enqueue(
                now_ns=now_ns,
                pool="p",
                request_id=f"request-{number:012d}",
                user_id=f"user-{number % users}",
                cost=rng.randint(100, 4000),
                predicted_class=PredictedClass.SHORT if short else PredictedClass.LONG,
                content_digest=number.to_bytes(16, "little"),
            ),
            log,
        )
    enqueue_s = time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - rss
    gc.collect()
    gc.freeze()
    gc.disable()
    times, completing_s = _drain(state, now_ns, dispatches)
    gc.enable()
    gc.unfreeze()
    return Result(
        preset,
        users,
        backlog,
        sum(times) / dispatches * 1e6,
        min(times[:-1] or times) / STRETCH * 1e6,
        enqueue_s / backlog * 1e6,
        completing_s / dispatches * 1e6,
        grown * 1024 / backlog,
    )


def _drain(state: State, now_ns: int, dispatches: int) -> tuple[list[float], float]:
    """Returns the seconds of each stretch of dispatches, and those of all completions."""
    encode, sha256, head = msgspec.msgpack.Encoder().encode, hashlib.sha256, bytes(32)
    log: list[d.Decision] = []
    times, completing_s, done = [], 0.0, 0
    while done < dispatches:
        stretch_s = 0.0
        for _ in range(STRETCH // BATCH):
            now_ns += 100_000
            log.clear()
            began = time.perf_counter()
            ask = c.NextDispatch(
                now_ns=now_ns, nonce=f"{done:024d}", pools=("p",), worker="w", max_dispatches=BATCH
            )
            answer = apply(state, ask, log)
            for decision in log:
                head = sha256(head + encode(decision)).digest()
            granted = time.perf_counter()
            stretch_s += granted - began
            for request in answer.granted:
                ended = Complete(
                    now_ns=now_ns, lease_id=request.held_lease.lease_id, outcome=d.Outcome.SUCCEEDED
                )
                apply(state, ended, log)
            completing_s += time.perf_counter() - granted
            done += len(answer.granted)
        times.append(stretch_s)
    return times, completing_s


def main() -> None:
    """Prints one line a preset and number of users."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--users", default="100,1000,10000,100000")
    parser.add_argument("--dispatches", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backlog", type=int, default=0, help="0: twice users or dispatches")
    parser.add_argument("--slack-milli", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="prints the first result as JSON")
    given = parser.parse_args()
    if given.json:
        users = int(given.users.split(",")[0])
        found = measure(
            given.presets.split(",")[0],
            users,
            dispatches=given.dispatches,
            backlog=given.backlog or max(2 * users, 2 * given.dispatches),
            seed=given.seed,
            slack_milli=given.slack_milli,
        )
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
        return
    write = sys.stdout.write
    write(
        "preset     users    backlog  dispatches/s  us/dispatch   best  us/enqueue  us/complete\n"
    )
    for preset in given.presets.split(","):
        for users in (int(text) for text in given.users.split(",")):
            backlog = given.backlog or max(2 * users, 2 * given.dispatches)
            found = measure(
                preset,
                users,
                dispatches=given.dispatches,
                backlog=backlog,
                seed=given.seed,
                slack_milli=given.slack_milli,
            )
            write(
                f"{preset:9}{users:8}{backlog:11}{found.dispatches_per_second:14,.0f}"
                f"{found.dispatch_us:13.1f}{found.best_us:7.1f}{found.enqueue_us:12.1f}"
                f"{found.complete_us:13.1f}\n"
            )


if __name__ == "__main__":
    main()
