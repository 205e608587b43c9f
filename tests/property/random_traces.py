"""Random traces through the core and the oracle, which must agree on every record.

Run many: `python -m tests.property.random_traces --count 10000 --seed 1`.  A failing trace prints
its seed; `--count 1 --seed S` repeats it and `--shrink` cuts it down to the commands that matter.
"""

import argparse
import sys
import time

from scheduler_service.core import commands as c
from scheduler_service.core.errors import SchedulerError
from tests.support.driver import DisagreementError, Driver
from tests.support.traces import Trace, check_answer


def shrink(history: list[c.Command]) -> list[c.Command]:
    """Drops commands one by one as long as the run still fails in the same way."""
    first = failure(history)
    kept = list(history)
    for size in (16, 8, 4, 2, 1):
        index = 0
        while index < len(kept):
            tried = kept[:index] + kept[index + size :]
            if failure(tried) == first:
                kept = tried
            else:
                index += size
    return kept


def failure(history: list[c.Command]) -> str:
    """How a run of these commands fails: names of the first differences; empty if it is fine."""
    driver = Driver()
    try:
        for command in history:
            check_answer(driver, command, driver.attempt(command))
        driver.check()
    except DisagreementError as error:
        return " ".join(sorted({f"{x.record}.{x.what}" for x in error.differences}))
    except (AssertionError, KeyError) as error:
        return f"{type(error).__name__} {error.args}"[:60]
    return ""


def say(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(f"{line}\n")


def main(argv: list[str] | None = None) -> int:
    """Runs the traces; returns 1 when one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args(argv)
    started, records, failed = time.perf_counter(), 0, 0
    for seed in range(options.seed, options.seed + options.count):
        trace = Trace(seed, steps=options.steps)
        try:
            records += len(trace.run().log)
        except (AssertionError, KeyError, SchedulerError) as error:
            failed += 1
            say(f"seed {seed}: {type(error).__name__}\n{error}")
            if options.shrink:
                for command in shrink(trace.driver.history):
                    say(f"    {command}")
            if not options.keep_going:
                return 1
    spent = time.perf_counter() - started
    say(f"{options.count} traces, {records} records, {failed} failed, {spent:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
