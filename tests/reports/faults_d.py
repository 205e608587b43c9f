"""Faults of section D: cancel, disconnect, waiting limits, backpressure."""

from tests.reports.fault import fault

CORE = "scheduler_service/core"
RPC = "scheduler_service/rpc"
D = "reports/test_d_waiting.py"

FAULTS = [
    fault(
        "R38",
        "what waits too long stays in the queue",
        f"{D}::test_r38_timed_out_requests_leave_the_queue_and_the_memory",
        (
            f"{CORE}/evolve.py",
            "    if expire_ns:\n        timers.arm_wait",
            "    if x.expire_ns and x.caller_bound:\n        timers.arm_wait",
        ),
    ),
    fault(
        "R39",
        "a request outlives the call that waits for it",
        f"{D}::test_r39_a_request_whose_caller_has_gone_is_never_run",
        (
            "scheduler_service/app/attendance.py",
            "if gone and not self._closed:",
            "if lease_id and not self._closed:",
        ),
    ),
    fault(
        "R41",
        "a cancelled call keeps its place",
        f"{D}::test_r41_cancelled_calls_leak_no_place",
        (
            f"{RPC}/acquire.py",
            (
                "            await self._attend(pool, request_id, follower, context)\n"
                "        finally:\n"
                "            app.slots.free_call(peer)\n"
            ),
            (
                "            await self._attend(pool, request_id, follower, context)\n"
                "        except asyncio.CancelledError:\n"
                "            raise\n"
                "        except Exception:\n"
                "            app.slots.free_call(peer)\n"
                "            raise\n"
                "        else:\n"
                "            app.slots.free_call(peer)\n"
            ),
        ),
    ),
    fault(
        "R43",
        "a cancelled request is only marked, and goes",
        f"{D}::test_r43_what_was_cancelled_before_its_start_never_starts",
        (
            f"{CORE}/lifecycle.py",
            "if request.state is d.RequestState.LEASED:\n        existing",
            "if request.state is not d.RequestState.REDELIVERY:\n        existing",
        ),
    ),
    fault(
        "R45",
        "what was cancelled while it ran ends as completed",
        f"{D}::test_r45_a_request_cancelled_while_it_runs_ends_as_cancelled",
        (
            f"{CORE}/lifecycle.py",
            "    if request.cancel_reason:\n        how =",
            "    if request.cancel_reason and x.outcome is not d.Outcome.SUCCEEDED:\n        how =",
        ),
    ),
    fault(
        "R46",
        "time limits are looked at only while nothing runs",
        f"{D}::test_r46_a_waiting_limit_needs_no_worker_to_take_effect",
        (
            "scheduler_service/app/engine.py",
            "if due is None or self.failed is not None:",
            "if due is None or self.failed is not None or self.state.leases:",
        ),
    ),
    fault(
        "R49",
        "a full queue is told as UNAVAILABLE",
        f"{D}::test_r49_every_way_to_be_turned_away_has_its_own_reason",
        (
            f"{RPC}/status.py",
            "LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED",
            "LimitReached: grpc.StatusCode.UNAVAILABLE",
        ),
    ),
    fault(
        "R50 R56",
        "a refusal gives no hint",
        f"{D}::test_r50_a_refusal_says_when_to_come_back {D}::test_r56_a_burst_meets_clear_answers",
        (
            f"{RPC}/status.py",
            "    if retry_after_seconds:\n        details.append(",
            "    if retry_after_seconds and isinstance(error, NotReady):\n        details.append(",
        ),
    ),
    fault(
        "R51",
        "a limit lets one more through",
        f"{D}::test_r51_a_limit_refuses_exactly_past_itself",
        (
            f"{CORE}/admission.py",
            "if held >= policy.max_waiting_per_user:",
            "if held > policy.max_waiting_per_user:",
        ),
    ),
    fault(
        "R53",
        "what no worker can hold waits for ever",
        f"{D}::test_r53_what_can_never_fit_is_no_temporary_overload",
        (
            f"{CORE}/dispatch.py",
            "if not holdable and ask.now_ns - request.enqueue_ns >= policy.unplaceable_wait_ns:",
            "if not holdable and policy.unplaceable_wait_ns < 0:",
        ),
    ),
    fault(
        "R53",
        "a bad request is told as an overload",
        f"{D}::test_r53_what_can_never_fit_is_no_temporary_overload",
        (
            f"{RPC}/status.py",
            "InvalidCommand: grpc.StatusCode.INVALID_ARGUMENT",
            "InvalidCommand: grpc.StatusCode.RESOURCE_EXHAUSTED",
        ),
    ),
    fault(
        "R55",
        "the end of a pause is lost",
        f"{D}::test_r55_a_pause_is_what_was_last_acknowledged",
        (
            f"{CORE}/expiry.py",
            "if timers.pause_end(state, pool_name, user_id) == due_ns:",
            "if timers.pause_end(state, pool_name, user_id) > due_ns:",
        ),
    ),
    fault(
        "R57",
        "a lease whose end has moved is not looked at again",
        f"{D}::test_r57_every_waiter_gets_exactly_one_end",
        (
            f"{CORE}/expiry.py",
            "        timers.arm_lease(state, pool, request)\n        return\n",
            "        return\n",
        ),
    ),
]
