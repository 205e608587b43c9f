"""Faults of sections H and I: metrics, the audit stream, health; identifiers, numbers, trust."""

from tests.reports.fault import fault

CORE = "scheduler_service/core"
RPC = "scheduler_service/rpc"
F = "reports/test_f_to_i.py"
BAD_INPUT = "integration/test_bad_input.py"
METRICS = "unit/obs/test_metrics.py"

FAULTS = [
    fault(
        "R109",
        "every user is a label",
        f"{METRICS}::test_users_are_no_label_by_default",
        (
            "scheduler_service/obs/pool_metrics.py",
            "    if users_max:\n        _users(rows, name, tally, learner, users_max, mask)",
            "    _users(rows, name, tally, learner, users_max or 10**9, mask)",
        ),
    ),
    fault(
        "R111",
        "what did not succeed stays in the gauge",
        f"{F}::test_r111_gauges_come_down_to_zero_and_counts_add_up",
        (
            f"{CORE}/evolve.py",
            "    pool.in_flight_cost -= request.cost\n",
            (
                "    if how is d.RequestState.SUCCEEDED:\n"
                "        pool.in_flight_cost -= request.cost\n"
            ),
        ),
    ),
    fault(
        "R112",
        "a worker that does not say what it has, has nothing",
        f"{F}::test_r112_dispatch_goes_on_when_nothing_feeds_capacity",
        (f"{RPC}/convert.py", "ANY_OFFER = d.Offer()\n", "ANY_OFFER = d.Offer(free_tokens=0)\n"),
    ),
    fault(
        "R114",
        "the whole log is read for a watcher that is behind",
        "integration/test_slow_watcher.py::test_half_a_million_behind",
        (
            "scheduler_service/app/audit.py",
            "STORE_PAGE_BYTES = 256 << 10\n",
            "STORE_PAGE_BYTES = 1 << 30\n",
        ),
    ),
    fault(
        "R116",
        "a log that stands still is no problem",
        "integration/test_durability.py::test_a_log_that_stands_still_makes_health_bad",
        (
            "scheduler_service/server/watchdog.py",
            "stalled = stood_ns > self._stall_ns\n",
            "stalled = False\n",
        ),
    ),
    fault(
        "R116",
        "time limits that stand still are no problem",
        f"{F}::test_r116_time_limits_that_stand_still_make_health_bad",
        (
            "scheduler_service/server/watchdog.py",
            "late = due_ns is not None and engine.now_ns() - due_ns > self._stall_ns\n",
            "late = due_ns is not None and engine.failed is not None\n",
        ),
    ),
    fault(
        "R117",
        "what a cap holds back counts as nothing",
        f"{F}::test_r117_what_nobody_can_start_is_seen",
        (
            f"{CORE}/dispatch.py",
            "        return EmptyReason.HELD_BY_CAP\n",
            "        return EmptyReason.EMPTY\n",
        ),
    ),
    fault(
        "R118",
        "an error of the engine is only logged",
        f"{F}::test_r118_a_failed_sweeper_does_not_go_unnoticed",
        (
            "scheduler_service/app/engine.py",
            "except BaseException as error:\n            self._stop(error)\n            raise\n",
            (
                "except BaseException as error:\n"
                '            self._report("engine.failed", error=repr(error))\n'
            ),
        ),
    ),
    fault(
        "R119",
        "a number may be as large as it will",
        f"{BAD_INPUT}::test_a_bad_field_is_named",
        (
            f"{RPC}/validate.py",
            "        if not low <= value <= high:\n",
            "        if value < low:\n",
        ),
    ),
    fault(
        "R120",
        "a duration that is none is taken as it comes",
        f"{BAD_INPUT}::test_a_bad_field_is_named",
        (
            f"{RPC}/validate.py",
            "if abs(nanos) > _NANOS_MAX or (seconds > 0 > nanos) or (seconds < 0 < nanos):",
            "if abs(seconds) > _SECONDS_MAX:",
        ),
    ),
    fault(
        "R122",
        "user and request are one key, with a colon between",
        f"{BAD_INPUT}::test_ids_that_a_separator_would_mix_up_stay_apart",
        (
            f"{RPC}/intake.py",
            'request_id = checks.id("request_id", x.request_id)\n',
            'request_id = f"{user_id}:" + checks.id("request_id", x.request_id)\n',
        ),
    ),
    fault(
        "R123",
        "ids must be plain letters",
        f"{BAD_INPUT}::test_ids_of_any_letters_are_taken_as_they_are",
        (
            f"{RPC}/validate.py",
            "return len(text.encode()) <= ID_BYTES_MAX and _control(text) is None",
            "return len(text.encode()) <= ID_BYTES_MAX and text.isidentifier()",
        ),
    ),
    fault(
        "R123",
        "odd letters of a name are not escaped",
        f"{METRICS}::test_odd_names_are_escaped",
        (
            "scheduler_service/obs/metrics.py",
            "    return generate_latest(registry)\n",
            '    return generate_latest(registry).replace(b"\\\\", b"")\n',
        ),
    ),
    fault(
        "R126",
        "a reload passes over pools that exist",
        "integration/test_reload.py::test_a_changed_file_acts_at_once",
        (
            "scheduler_service/config/applied.py",
            "        elif policy != pool.policy:\n",
            "        elif not pool.policy_digest:\n",
        ),
    ),
    fault(
        "R128",
        "whoever has a role may call anything",
        "integration/test_access.py::test_role_matrix",
        (f"{RPC}/identity.py", "if self.roles.isdisjoint(allowed):", "if not self.roles:"),
    ),
    fault(
        "R128",
        "the log names whom the caller claims to be",
        "integration/test_access.py::test_the_log_names_the_caller",
        (f"{RPC}/intake.py", "            peer=caller.name,\n", "            peer=x.user_id,\n"),
    ),
    fault(
        "R130",
        "a request without a cost is taken",
        f"{F}::test_r130_nobody_rides_free",
        (
            f"{RPC}/intake.py",
            "            if not x.tokens.stated:\n",
            "            if x.tokens.stated and min(x.tokens) < 0:\n",
        ),
    ),
]
