"""Golden decision logs: commands above a line, every decision below it.

A file is a comment, then blocks separated by blank lines.  A block is commands (and comments),
`----`, and what the core decided, one line a record.  `replayed(text, core)` runs the commands and
returns the text anew; a golden test compares the two.

Commands (ids are the user and a number from 0, unless `id=` says otherwise):
    pool [PRESET] [parameter=value ...]      create the pool, or change its policy
    enqueue USER COST [long] [xN] [kv=N] [wait=5s] [id=R] [label=L]
    dispatch [xN] [worker=W] [free=N] [total=N] [shorts|longs] [lease=5s] [provisional] [key=K]
    complete R [failed|back|lost]            prefill R           renew R        late R
    cancel R      requeue R      advance 5s      weigh USER MILLI      cap USER N
    pause [USER]  resume [USER]  recover 5s      crash      state

Numbers are cost units and seconds.  A dispatch line is `USER +charge v=… S_USER=…` with the meters
of all users, then what is not plain: the request, its class rule, counter, turn.  `crash` folds the
log into a new state and goes on with that one.
"""

import shlex
from collections.abc import Iterator
from fractions import Fraction

from scheduler_service.core import commands as c
from scheduler_service.core import decisions as d
from scheduler_service.core.errors import SchedulerError
from scheduler_service.core.policy import MICRO, PRESETS, SECOND_NS, ClassOrder, PoolPolicy
from tests.support.core import REAL, Core
from tests.support.driver import LONG, POOL, SHORT, Driver


def units(micros: int) -> str:
    """Micro cost units as cost units, exactly."""
    whole, rest = divmod(micros, MICRO)
    return f"{whole}.{rest:06d}".rstrip("0") if rest else str(whole)


def seconds(time_ns: int) -> str:
    """Nanoseconds as seconds, exactly."""
    whole, rest = divmod(time_ns, SECOND_NS)
    return (f"{whole}.{rest:09d}".rstrip("0") if rest else str(whole)) + "s"


def duration(text: str) -> int:
    """`1.5s` in nanoseconds."""
    return int(Fraction(text.removesuffix("s")) * SECOND_NS)


def replayed(text: str, core: Core = REAL) -> str:
    """Runs the commands of a golden file; returns the file as it comes out."""
    return Runner(core, checked=True).replay(text)


class Runner:
    """Runs the commands of one file.

    Attributes:
        driver: What they are run on; if not `checked`, its `differences` are what the oracle found.
    """

    def __init__(self, core: Core = REAL, *, checked: bool) -> None:
        self.driver = Driver(core=core, strict=checked, replica=checked)
        self.numbers: dict[str, int] = {}
        self.leases: dict[str, str] = {}
        self.superseded: dict[str, str] = {}
        self.users: list[str] = []
        self.policy: PoolPolicy = PRESETS["sfq"]

    def replay(self, text: str) -> str:
        """Runs all commands; returns the text as it comes out."""
        head, *blocks = text.strip().split("\n\n")
        comment = head.split("\n")
        while comment and comment[0].startswith("#"):
            comment.pop(0)
        if comment:
            blocks.insert(0, "\n".join(comment))
            head = "\n".join(line for line in head.split("\n") if line.startswith("#"))
        parts = [head]
        for block in blocks:
            command = block.split("\n----", maxsplit=1)[0]
            commands = [line for line in command.split("\n") if not line.startswith("#")]
            lines = [line for one in commands for line in self.run(one)]
            parts.append("\n".join([command, "----", *(lines or ["ok"])]))
        return "\n\n".join(parts) + "\n"

    def run(self, line: str) -> list[str]:
        """Runs one command; returns the lines below it."""
        name, *words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        start = len(self.driver.log)
        said: list[str] = []
        try:
            said = list(getattr(self, f"_{name}")(*plain, **options) or ())
        except SchedulerError as error:
            said = [f"refused {error.reason}"]
        return [*self._lines(start), *said]

    # Commands

    def _pool(self, *preset: str, **changes: str) -> None:
        base = PRESETS[preset[0]] if preset else self.policy
        fields = {name: getattr(base, name) for name in base.__struct_fields__}
        for name, value in changes.items():
            kind = type(fields[name])
            fields[name] = kind[value] if hasattr(kind, "__members__") else _number(value)
        self.policy = PoolPolicy(**fields)
        self.driver.configure(self.policy)

    def _enqueue(self, user: str, cost: str, *words: str, **options: str) -> Iterator[str]:
        if user not in self.users:
            self.users.append(user)
        for _ in range(_times(words)):
            number = self.numbers[user] = self.numbers.get(user, -1) + 1
            answer = self.driver.enqueue(
                options.get("id", f"{user}{number}"),
                user,
                int(cost),
                LONG if "long" in words else SHORT,
                kv_tokens=int(options.get("kv", 0)),
                max_wait_ns=duration(options.get("wait", "0")),
                labels=(options["label"],) if "label" in options else (),
            )
            if answer.existing:
                yield f"repeated {answer.state.name}"

    def _dispatch(self, *words: str, **options: str) -> Iterator[str]:
        free = int(options.get("free", -1))
        offer = d.Offer(
            free_tokens=free,
            total_tokens=int(options.get("total", free)),
            accepts_short="longs" not in words,
            accepts_long="shorts" not in words,
            labels=(options["label"],) if "label" in options else (),
        )
        answer = self.driver.ask(
            _times(words),
            options.get("worker", "w"),
            offer=offer,
            lease_duration_ns=duration(options.get("lease", "0")),
            hand_over="provisional" in words,
            idempotency_key=options.get("key", ""),
        )
        for record in self.driver.records(answer):
            if record.request_id in self.leases:
                self.superseded[record.request_id] = self.leases[record.request_id]
            self.leases[record.request_id] = record.lease_id
        if answer.existing:
            yield "repeated " + " ".join(request.request_id for request in answer.granted)
        elif answer.empty_reason is not d.EmptyReason.NONE:
            yield f"{answer.empty_reason.name} {answer.stalled_by}".rstrip()

    def _complete(self, request_id: str, how: str = "ok") -> Iterator[str]:
        outcome = {"ok": 1, "failed": 2, "back": 3, "lost": 3}[how]
        answer = self.driver.complete(
            self.leases[request_id],
            d.Outcome(outcome),
            undelivered=how == "lost",
            output_tokens=1_000_000,
        )
        if answer.existing:
            yield f"repeated {answer.state.name}"

    def _late(self, request_id: str) -> Iterator[str]:
        answer = self.driver.complete(self.superseded[request_id])
        yield answer.state.name

    def _prefill(self, request_id: str) -> None:
        self.driver.renew(self.leases[request_id], prefilled=True)

    def _renew(self, request_id: str) -> Iterator[str]:
        for answer in self.driver.renew(self.leases[request_id]):
            if answer.problem or answer.cancel_requested:
                yield answer.problem or "cancel requested"

    def _cancel(self, request_id: str) -> None:
        self.driver.cancel(request_id)

    def _requeue(self, request_id: str) -> None:
        self.driver.do(c.Requeue, pool=POOL, request_id=request_id)

    def _advance(self, time: str) -> None:
        self.driver.now_ns += duration(time)
        self.driver.do(c.Tick)

    def _recover(self, time: str) -> None:
        self.driver.now_ns += duration(time)
        self.driver.do(c.Recover, downtime_ns=duration(time))

    def _weigh(self, user: str, weight: str) -> None:
        self.driver.weigh(user, int(weight))

    def _cap(self, user: str, cap: str) -> None:
        self.driver.weigh(user, 0, int(cap))

    def _pause(self, user: str = "", until: str = "0") -> None:
        self.driver.pause(user, duration(until) and self.driver.now_ns + duration(until))

    def _resume(self, user: str = "") -> None:
        self.driver.resume(user)

    def _crash(self) -> None:
        core, state = self.driver.core, self.driver.core.new_state()
        for record in self.driver.log:
            core.evolve(state, record)
        self.driver.state = state

    def _state(self) -> Iterator[str]:
        pool = self.driver.state.pools[POOL]
        yield f"v={units(pool.virtual_time)} waiting={pool.waiting} leased={pool.leased}"

    # Records

    def _lines(self, start: int) -> Iterator[str]:
        for record in self.driver.log[start:]:
            writer = getattr(self, f"_write_{type(record).__name__}", None)
            line = writer(record) if writer else None
            if line:
                yield line

    def _write_Dispatched(self, record: d.Dispatched) -> str:
        pool = self.driver.state.pools[POOL]
        meters = {user: flow.meter for user, flow in pool.flows.items()}
        meters = _meters_at(self.driver, record, meters)
        line = f"{record.user_id} +{units(record.charge_micros)}"
        line += f" v={units(record.virtual_time_after)}"
        for user in self.users:
            line += f" S_{user}={units(meters.get(user, record.virtual_time_after))}"
        return " ".join([line, *self._extras(record)])

    def _extras(self, record: d.Dispatched) -> Iterator[str]:
        if self.policy.preset != "sfq" or record.turn is not d.Turn.SELECTED:
            yield record.request_id
        if record.turn is not d.Turn.SELECTED:
            yield record.turn.name.lower()
        if self.policy.class_order is not ClassOrder.FCFS:
            yield record.rule.name.lower()
        if self.policy.class_order is ClassOrder.QBA:
            before, after = record.short_admission_count_before, record.short_admission_count_after
            yield f"c={before}" + (f"->{after}" if after != before else "")
        if record.aging_threshold_ns >= 0 and record.predicted_class is LONG:
            aged = ">" if record.aged else "<="
            yield f"wait={seconds(record.wait_ns)}{aged}{seconds(record.aging_threshold_ns)}"
        if record.passes_after:
            yield f"passes={record.passes_after}"
        if record.attempt > 1:
            yield f"attempt={record.attempt}"
        if record.overtook:
            yield f"overtook={','.join(record.overtook)}"

    def _write_BusyPeriodClosed(self, record: d.BusyPeriodClosed) -> str:
        return f"idle v={units(record.virtual_time_after)}"

    def _write_Rejoined(self, record: d.Rejoined) -> str:
        before, after = units(record.meter_before), units(record.meter_after)
        why = " unplaceable" if record.cause is d.RejoinCause.UNPLACEABLE else ""
        return f"{record.user_id} rejoined S={before}->{after}{why}"

    def _write_Accepted(self, record: d.Accepted) -> str | None:
        if record.meter_before == record.meter_after:
            return None
        before, after = units(record.meter_before), units(record.meter_after)
        return f"{record.user_id} arrived S={before}->{after}"

    def _write_UserConfigured(self, record: d.UserConfigured) -> str | None:
        if record.meter_before == record.meter_after:
            return None
        before, after = units(record.meter_before), units(record.meter_after)
        return f"{record.user_id} rescaled S={before}->{after}"

    def _write_Ended(self, record: d.Ended) -> str:
        return f"{record.request_id} {record.state.name.lower()} {record.reason}"

    def _write_Completed(self, record: d.Completed) -> str:
        return f"{record.request_id} {record.state.name.lower()}"

    def _write_LeaseEnded(self, record: d.LeaseEnded) -> str:
        line = f"{record.request_id} lease {record.cause.name.lower()}"
        return f"{line} failures={record.failures_after}"

    def _write_CancelRequested(self, record: d.CancelRequested) -> str:
        return f"{record.request_id} is to stop"

    def _write_PrefillCompleted(self, record: d.PrefillCompleted) -> str:
        debt = " debt" if record.promotion_debt_after else ""
        return f"{record.request_id} prefilled c={record.short_admission_count_after}{debt}"

    def _write_Reserved(self, record: d.Reserved) -> str:
        return f"{record.worker} reserved for {record.request_id}"

    def _write_Requeued(self, record: d.Requeued) -> str:
        return f"{record.request_id} requeued"

    def _write_Rebased(self, record: d.Rebased) -> str:
        return f"rebased by {units(record.offset_micros)}"

    def _write_Resumed(self, record: d.Resumed) -> str:
        return f"resumed {record.user_id or 'pool'}" + (" by timer" if record.by_timer else "")


def _meters_at(driver: Driver, record: d.Dispatched, now: dict[str, int]) -> dict[str, int]:
    """Meters right after `record`: those of now, with later changes of the same command undone."""
    meters = dict(now)
    for later in reversed(driver.log[driver.log.index(record) + 1 :]):
        user = getattr(later, "user_id", "")
        if isinstance(later, d.Rebased):
            meters = {name: meter + later.offset_micros for name, meter in meters.items()}
        elif hasattr(later, "meter_before"):
            meters[user] = later.meter_before
    meters[record.user_id] = record.meter_after
    return meters


def _number(text: str) -> int:
    return duration(text) if text.endswith("s") else int(text)


def _times(words: tuple[str, ...]) -> int:
    return next((int(word[1:]) for word in words if word[0] == "x" and word[1:].isdigit()), 1)
