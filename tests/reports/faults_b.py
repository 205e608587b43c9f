"""Faults of sections B and C: long against short, placement, and what cost is settled."""

from tests.reports.fault import fault

CORE = "scheduler_service/core"
B = "reports/test_b_long_and_short.py"

FAULTS = [
    fault(
        "R21",
        "classes count for nothing: the oldest goes first",
        f"{B}::test_r21_a_few_very_long_prompts_do_not_hold_up_the_short_ones",
        (
            f"{CORE}/selection.py",
            "if order is _FCFS:\n        return _first_come(pool)",
            "if order in {_FCFS, _QBA}:\n        return _first_come(pool)",
        ),
    ),
    fault(
        "R23",
        "nothing ever ages",
        f"{B}::test_r23_a_long_request_is_dispatched_under_an_endless_stream_of_shorts",
        (
            f"{CORE}/selection.py",
            "aged_before = now_ns - threshold if threshold >= 0 else -1",
            "aged_before = -1",
        ),
    ),
    fault(
        "R26",
        "a head that does not fit stalls whoever is behind it",
        f"{B}::test_r26_a_head_that_does_not_fit_lets_smaller_ones_pass",
        (
            f"{CORE}/dispatch.py",
            "if holdable and policy.placement is Placement.STALL:",
            "if policy.placement is not None:",
        ),
    ),
    fault(
        "R27",
        "a request may be passed over for ever",
        f"{B}::test_r27_who_was_passed_over_too_often_gets_the_next_worker_that_can_hold_it",
        (
            f"{CORE}/dispatch.py",
            "request.overtakes >= pool.policy.max_overtakes\n",
            "request.overtakes > 10**9\n",
        ),
    ),
    fault(
        "R27",
        "what nobody alive can hold stops the pool at the edge of the band",
        f"{B}::test_r27_what_no_live_worker_can_hold_does_not_stall_the_others",
        (
            f"{CORE}/dispatch.py",
            "if pool.backlog.charged and _pass_unplaceable(state, pool, ask, log):",
            "if pool.backlog.user_by_user and _pass_unplaceable(state, pool, ask, log):",
        ),
    ),
    fault(
        "R29",
        "a smaller weight all but starves",
        f"{B}::test_r29_batch_keeps_a_trickle_beside_interactive_load",
        (
            f"{CORE}/granting.py",
            "charge = charge_for(request.cost, flow.weight_milli)",
            "charge = charge_for(request.cost, flow.weight_milli**2 // 1000)",
        ),
    ),
    fault(
        "R29",
        "age alone promotes, without a debt",
        "reports/test_f_to_i.py::test_r29_aging_promotes_no_more_than_its_quota",
        (
            f"{CORE}/selection.py",
            "elif pool.promotion_debt and not pool.promotion_under_way:",
            "elif not pool.promotion_under_way:",
        ),
    ),
    fault(
        "R31",
        "an unknown class is ignored in silence",
        f"{B}::test_r31_an_unknown_class_is_refused_and_the_class_used_is_shown",
        (
            "scheduler_service/rpc/intake.py",
            'predicted_class = checks.enum("predicted_class", x.predicted_class, _CLASSES)',
            "predicted_class = x.predicted_class if x.predicted_class in _CLASSES else 0",
        ),
    ),
    fault(
        "R32",
        "each decision counts all that waits",
        f"{B}::test_r32_a_decision_costs_no_more_with_ten_times_the_queue",
        (
            f"{CORE}/dispatch.py",
            "    if pool.backlog.selectable == 0:\n        return _why_nothing(pool)",
            (
                "    if not sum(one.lease is None for one in pool.requests.values()):\n"
                "        return _why_nothing(pool)"
            ),
        ),
    ),
    fault(
        "R33",
        "what was used is charged afterwards",
        f"{B}::test_r33_a_late_report_of_more_usage_changes_no_meter_but_teaches_the_estimator",
        (
            f"{CORE}/evolve.py",
            "    _drop_lease(state, pool, request)\n    reason",
            (
                "    _drop_lease(state, pool, request)\n"
                "    pool.flows[request.user_id].meter += max(x.output_tokens - request.cost, 0)\n"
                "    reason"
            ),
        ),
    ),
    fault(
        "R33",
        "the estimator learns nothing about a user",
        f"{B}::test_r33_a_late_report_of_more_usage_changes_no_meter_but_teaches_the_estimator",
        (
            "scheduler_service/app/estimate.py",
            "pool.ratios.get(user_id, NOTHING_LEARNED),",
            "NOTHING_LEARNED,",
        ),
        (
            "scheduler_service/app/estimate.py",
            'pool.ratios.get("", NOTHING_LEARNED),',
            "NOTHING_LEARNED,",
        ),
    ),
    fault(
        "R35",
        "a cancelled lease is refunded",
        f"{B}::test_r35_a_cancelled_lease_is_charged_once_whatever_is_repeated",
        (
            f"{CORE}/evolve.py",
            "    flow.in_flight -= 1\n",
            (
                "    flow.in_flight -= 1\n"
                "    if how is d.RequestState.CANCELLED:\n"
                "        flow.meter -= request.cost * 1_000_000\n"
            ),
        ),
    ),
    fault(
        "R37",
        "the error of a write is dropped",
        "integration/test_durability.py::test_a_failed_log_stops_everything",
        (
            "scheduler_service/app/commit.py",
            "            payloads = store.append(group)\n",
            (
                "            try:\n"
                "                payloads = store.append(group)\n"
                "            except Exception:\n"
                "                payloads = {}\n"
            ),
        ),
    ),
    fault(
        "R37",
        "the error of a sync is dropped",
        "fault/test_syscalls.py::test_a_failed_sync_is_never_followed_by_an_acknowledgement",
        (
            "scheduler_service/store/sqlite.py",
            (
                "        except sqlite3.Error as error:\n"
                "            self._failure = database.translate(error, self.name)\n"
                "            raise self._failure from error\n\n"
                "    def _waiting_out_full"
            ),
            "        except sqlite3.Error:\n            return {}\n\n    def _waiting_out_full",
        ),
    ),
]
