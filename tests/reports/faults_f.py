"""Faults of section F: restart and clocks."""

from tests.reports.fault import fault

CORE = "scheduler_service/core"
F = "reports/test_f_to_i.py"

FAULTS = [
    fault(
        "R86",
        "a user without a lease is forgotten, waiting or not",
        f"{F}::test_r86_a_user_with_work_is_never_forgotten",
        (
            f"{CORE}/flows.py",
            "    if flow.waiting or flow.in_flight:\n        return\n",
            "    if flow.in_flight:\n        return\n",
        ),
    ),
    fault(
        "R88 R90",
        "engine time is wall time",
        f"{F}::test_r88_r90_a_step_of_the_wall_clock_expires_nothing",
        (
            "scheduler_service/app/clock.py",
            "return time.monotonic_ns() + self._offset_ns",
            "return time.time_ns()",
        ),
    ),
    fault(
        "R88",
        "a restart begins at wall time",
        f"{F}::test_r88_a_clock_set_back_before_a_restart_takes_no_time_back",
        (
            "scheduler_service/app/clock.py",
            "self.start_ns = max(time.time_ns(), last_ns)",
            "self.start_ns = time.time_ns()",
        ),
    ),
    fault(
        "R89",
        "a caller states the time at which it gives up",
        f"{F}::test_r89_callers_state_durations_never_times",
        (
            "proto/fairsched/v1/scheduler_service.proto",
            "google.protobuf.Duration max_wait",
            "google.protobuf.Timestamp max_wait",
        ),
    ),
]
