"""Faults of section A: fair share between users."""

from tests.reports.fault import fault

CORE = "scheduler_service/core"
A = "reports/test_a_fair_share.py"

ARRIVAL = "meter_after = meter if meter > virtual_time else virtual_time"
CHARGE = "charge = charge_for(request.cost, flow.weight_milli)"

FAULTS = [
    fault(
        "R1 R30",
        "turns are free: first come, first served",
        f"{A}::test_r1_a_burst_of_one_tenant_does_not_hold_up_the_next"
        " reports/test_b_long_and_short.py"
        "::test_r30_a_newcomer_gets_one_of_the_next_two_slots_however_long_the_queue",
        (f"{CORE}/granting.py", CHARGE, "charge = 0"),
    ),
    fault(
        "R2",
        "a request is charged as one, whatever it costs",
        f"{A}::test_r2_shares_are_of_cost_not_of_requests"
        f" {A}::test_r2_with_slack_0_the_difference_is_one_request_of_each",
        (f"{CORE}/granting.py", CHARGE, "charge = charge_for(1, flow.weight_milli)"),
    ),
    fault(
        "R4",
        "a newcomer starts at zero",
        f"{A}::test_r4_a_client_joining_a_momentarily_empty_queue_starts_at_virtual_time",
        (
            f"{CORE}/admission.py",
            "meter = virtual_time if flow is None",
            "meter = 0 if flow is None",
        ),
        (f"{CORE}/admission.py", ARRIVAL, "meter_after = meter"),
        (f"{CORE}/flows.py", "meter=pool.virtual_time,", "meter=0,"),
    ),
    fault(
        "R7",
        "the manual does not say what fairness is per",
        f"{A}::test_r7_the_manual_says_what_fairness_is_per",
        ("proto/README.md", "Fairness is per `user_id`, in each pool. ", ""),
    ),
    fault(
        "R8",
        "slack in cost units, meters in millionths of them",
        "property/test_random_traces.py::test_core_and_oracle_agree",
        (
            f"{CORE}/charge.py",
            "slack *= MICRO // 1000",
            "slack //= 1000",
        ),
    ),
    fault(
        "R10",
        "meters start again after a restart",
        f"{A}::test_r10_shares_survive_a_restart_half_way"
        f" {A}::test_r10_meters_come_back_from_the_log_of_a_real_service",
        (
            f"{CORE}/fold_config.py",
            (
                "    for worker in state.workers.values():\n"
                "        worker.last_seen_ns += x.downtime_ns\n"
            ),
            (
                "    for pool in state.pools.values():\n"
                "        for flow in pool.flows.values():\n"
                "            flow.meter = pool.virtual_time\n"
                "        rebuild(pool)\n"
            ),
        ),
    ),
    fault(
        "R10",
        "a snapshot does not keep meters",
        f"{A}::test_r10_shares_survive_a_restart_half_way",
        (
            f"{CORE}/snapshot.py",
            '    pool.virtual_time = scalars["virtual_time"]\n',
            (
                '    pool.virtual_time = scalars["virtual_time"]\n'
                "    for flow in pool.flows.values():\n"
                "        flow.meter = pool.virtual_time\n"
            ),
        ),
    ),
    fault(
        "R11",
        "ties go by name, slack or not",
        f"{A}::test_r11_ties_go_to_whoever_waits_longer",
        (
            f"{CORE}/backlog.py",
            "self.user_by_user = policy.user_by_user",
            "self.user_by_user = self.charged",
        ),
    ),
    fault(
        "R12",
        "the newest request of a user goes first",
        f"{A}::test_r12_a_users_own_order_is_kept",
        (
            f"{CORE}/backlog.py",
            (
                "head = self.short_of(flow) if self.fifo else flow.oldest_short\n"
                "                if head is not None and head.sequence == sequence:\n"
                "                    if flow.meter <= self.edge:\n"
                "                        return flow, head"
            ),
            (
                "head = self.short_of(flow) if self.fifo else flow.oldest_short\n"
                "                if head is not None and head.sequence == sequence:\n"
                "                    if flow.meter <= self.edge:\n"
                "                        return flow, flow.newest_short or head"
            ),
        ),
    ),
    fault(
        "R13",
        "a user is ranked when it arrives, and never again",
        f"{A}::test_r13_what_waits_is_not_ranked_once_and_for_all",
        (
            f"{CORE}/admission.py",
            ARRIVAL,
            "meter_after = max(meter, virtual_time) + x.cost * 1_000_000",
        ),
        (f"{CORE}/granting.py", CHARGE, "charge = 0"),
    ),
    fault(
        "R15",
        "after ten minutes the order falls back to first come",
        f"{A}::test_r15_no_time_constant_in_the_share",
        (
            f"{CORE}/selection.py",
            "slack = slack_for(rules, pool.recent_costs.largest)",
            (
                "slack = 10**15 if now_ns > 600 * 10**9 else"
                " slack_for(rules, pool.recent_costs.largest)"
            ),
        ),
    ),
    fault(
        "R16",
        "a cap lets one more through",
        f"{A}::test_r16_a_batch_in_one_millisecond_keeps_order_and_caps",
        (
            f"{CORE}/flows.py",
            "not flow.paused and not 0 < flow.max_in_flight <= flow.in_flight",
            "not flow.paused and not 0 < flow.max_in_flight < flow.in_flight",
        ),
        (
            f"{CORE}/flows.py",
            "flow.paused or 0 < flow.max_in_flight <= flow.in_flight",
            "flow.paused or 0 < flow.max_in_flight < flow.in_flight",
        ),
    ),
    fault(
        "R17",
        "a weight out of range is taken",
        f"{A}::test_r17_a_weight_out_of_range_is_refused_by_name",
        (
            "scheduler_service/rpc/admin_changes.py",
            'checks.number("weight_milli", x.weight_milli, 0, WEIGHT_MILLI_MAX)',
            "pass",
        ),
    ),
    fault(
        "R17",
        "weight 0 is a weight",
        f"{A}::test_r17_weight_zero_is_the_documented_way_back_to_the_default",
        (
            f"{CORE}/flows.py",
            "return own or pool.policy.default_weight_milli",
            "return pool.policy.default_weight_milli if settings is None else own",
        ),
        (
            f"{CORE}/admin.py",
            "weight_after = x.weight_milli or pool.policy.default_weight_milli",
            "weight_after = x.weight_milli",
        ),
    ),
    fault(
        "R19",
        "an idle pool sets its clock to nothing",
        f"{A}::test_r19_cold_starts_and_empty_sets_are_no_trouble",
        (f"{CORE}/recording.py", "after = max(before, pool.largest_meter)", "after = 0"),
    ),
]
