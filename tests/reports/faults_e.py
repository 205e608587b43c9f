"""Faults of section E: leases, worker death, duplicate delivery, idempotency; and what is kept."""

from tests.reports.fault import fault

CORE = "scheduler_service/core"
STORE = "scheduler_service/store"
E = "reports/test_e_leases.py"
TORN = "fault/test_torn_journal.py"

FAULTS = [
    fault(
        "R58",
        "a renewal does not move the end of a lease",
        f"{E}::test_r58_a_lease_that_is_renewed_is_never_delivered_twice",
        (
            f"{CORE}/evolve.py",
            "    lease.expire_ns = x.expire_ns\n",
            "    lease.expire_ns = min(lease.expire_ns, x.expire_ns)\n",
        ),
    ),
    fault(
        "R59",
        "a lease is counted from the arrival",
        f"{E}::test_r59_waiting_is_not_leasing",
        (
            f"{CORE}/granting.py",
            "    expire_ns, hand_over_ns = _lease_times(pool, ask)\n",
            (
                "    expire_ns, hand_over_ns = _lease_times(pool, ask)\n"
                "    expire_ns += request.enqueue_ns - now_ns\n"
            ),
        ),
    ),
    fault(
        "R61",
        "an unknown lease is fatal",
        f"{E}::test_r61_finishing_what_is_not_ones_own_is_answered_never_fatal",
        (
            f"{CORE}/lifecycle.py",
            (
                "    known = old_lease(state, lease_id)\n"
                "    if known is None:\n"
                '        raise Unknown("LEASE_UNKNOWN",'
                ' f"There is no lease {lease_id!r}.", leaseId=lease_id)\n'
                "    return known\n"
            ),
            "    return state.old_leases[int(lease_id)]\n",
        ),
    ),
    fault(
        "R62",
        "the repeat of a dead request is told that it waits",
        f"{E}::test_r62_a_failed_id_is_not_blocked_in_silence",
        (
            f"{CORE}/admission.py",
            "d.RequestState.DEAD_LETTERED if request_id in pool.dead else known.state,",
            "d.RequestState.WAITING,",
        ),
    ),
    fault(
        "R64",
        "leases of dead workers are looked at only after a restart",
        f"{E}::test_r64_dead_workers_are_noticed_while_the_service_runs",
        (f"{CORE}/evolve.py", "    timers.arm_lease(state, pool, request)\n", ""),
    ),
    fault(
        "R66",
        "what has ended keeps its user's place",
        f"{E}::test_r66_whatever_prefix_of_the_log_survives_each_request_is_in_one_place",
        (f"{CORE}/evolve.py", "    flow.in_flight -= 1\n", ""),
    ),
    fault(
        "R68",
        "a dispatch need not be confirmed",
        f"{E}::test_r68_a_dispatch_nobody_received_is_handed_on_within_the_hand_over_time",
        (f"{CORE}/granting.py", "needed = 0 < hand_over < duration", "needed = False"),
    ),
    fault(
        "R69",
        "a pause between looking and parking",
        f"{E}::test_r69_no_arrival_falls_between_looking_and_parking",
        (
            "scheduler_service/rpc/pulling.py",
            "        app.slots.take_call(peer)\n",
            "        await asyncio.sleep(0.001)\n        app.slots.take_call(peer)\n",
        ),
    ),
    fault(
        "R70",
        "one arrival wakes every parked call",
        f"{E}::test_r70_one_arrival_wakes_the_worker_that_has_waited_longest",
        (
            "scheduler_service/app/waiters.py",
            (
                "            if pool is not None and not pool.backlog.selectable"
                " and not pool.redelivery:\n                return True\n"
            ),
            "",
        ),
        (
            "scheduler_service/app/waiters.py",
            (
                "            if len(call.pools) == 1 and answer.empty_reason in _POOL_IS_DRY:\n"
                "                return True\n"
            ),
            "",
        ),
    ),
    fault(
        "R70",
        "the call parked last is served first",
        f"{E}::test_r70_one_arrival_wakes_the_worker_that_has_waited_longest",
        (
            "scheduler_service/app/waiters.py",
            "deque(self._by_pool.get(pool, ()))",
            "deque(reversed(self._by_pool.get(pool, ())))",
        ),
    ),
    fault(
        "R71",
        "only polite failures count as attempts",
        f"{E}::test_r71_what_kills_its_workers_is_given_up_after_max_attempts",
        (
            f"{CORE}/lifecycle.py",
            "failures = request.failures + (cause is d.LeaseEndCause.EXPIRED)",
            "failures = request.failures + (cause is d.LeaseEndCause.GIVEN_BACK)",
        ),
    ),
    fault(
        "R72",
        "what was given up is given up again and again",
        f"{E}::test_r72_giving_up_is_written_down_once",
        (
            f"{CORE}/scheduler.py",
            (
                "def _tick(_state: State, _command: c.Tick, _log: list[d.Decision]) -> None:\n"
                '    """Does nothing: the timers have fired."""\n'
            ),
            (
                "def _tick(state: State, x: c.Tick, log: list[d.Decision]) -> None:\n"
                "    how = d.RequestState.DEAD_LETTERED\n"
                "    for pool in state.pools.values():\n"
                "        for dead in tuple(pool.dead.values()):\n"
                "            name, user = dead.request_id, dead.user_id\n"
                "            again = d.Requeued(x.now_ns, pool.name, name, '', user)\n"
                "            record(state, log, again)\n"
                "            lifecycle.end(state, pool, dead, how, 'MAX_ATTEMPTS', x.now_ns, log)\n"
            ),
        ),
    ),
    fault(
        "R74",
        "an id with another body is taken for a repeat",
        f"{E}::test_r74_the_same_id_with_another_body_is_an_error",
        (
            f"{CORE}/admission.py",
            "if known.content_digest != x.content_digest or known.user_id != user_id:",
            "if known.request_id != x.request_id:",
        ),
    ),
    fault(
        "R76",
        "a polite release counts as an attempt",
        f"{E}::test_r76_a_polite_release_is_redelivered_at_once_and_not_held_against_it",
        (
            f"{CORE}/evolve.py",
            "    if x.cause is not d.LeaseEndCause.EXPIRED:\n        request.attempts -= 1\n",
            "    if x.cause is d.LeaseEndCause.HAND_OVER:\n        request.attempts -= 1\n",
        ),
    ),
    fault(
        "R76",
        "a worker that is told to stop drops what it runs",
        "clients/test_sync.py::test_sigterm_gives_back",
        (
            "clients/python/fairsched/sync_worker.py",
            "            if not job.lost:\n",
            "            if not job.lost and not job.stop.is_set():\n",
        ),
    ),
    fault(
        "R78",
        "what a worker says it can hold is ignored",
        f"{E}::test_r78_a_worker_gets_no_more_than_it_says_it_can_hold",
        (
            f"{CORE}/scheduler.py",
            "limit = min(limit, x.offer.max_leases)",
            "limit = max(limit, x.offer.max_leases)",
        ),
    ),
    fault(
        "R80",
        "a start refuses what an interrupted write left",
        f"{TORN}::test_a_journal_cut_at_each_of_its_last_200_bytes_loses_the_torn_group_only"
        f" {TORN}::test_a_journal_cut_to_almost_nothing_leaves_what_was_checkpointed",
        (
            f"{STORE}/sqlite.py",
            '            self._report("log.tail_cut", file=path.name, offset=offset)\n',
            '            raise StoreFailed(f"{path.name} is torn at {offset}")\n',
        ),
    ),
    fault(
        "R81",
        "the log is cut past the snapshot that it needs",
        "fault/test_kill.py"
        "::test_killed_at_any_moment_it_starts_again_with_everything_acknowledged",
        (
            f"{STORE}/pruning.py",
            "if end.sequence > floor or not self._exceeds(end, head):",
            "if floor < 0 or not self._exceeds(end, head):",
        ),
    ),
    fault(
        "R82",
        "what is only in the write-ahead file is not seen",
        f"{E}::test_r82_everything_acknowledged_is_there_after_a_restart",
        (
            f"{STORE}/sqlite.py",
            "            self._writer = database.open_writer(directory.log_path, durability)\n",
            (
                "            directory.journal_path.unlink(missing_ok=True)\n"
                "            self._writer = database.open_writer(directory.log_path, durability)\n"
            ),
        ),
    ),
    fault(
        "R84",
        "what was pruned is passed over in silence",
        "integration/test_audit.py::test_pruned_while_away",
        (
            "scheduler_service/app/audit.py",
            "        if after_sequence < base.sequence:\n            raise trimmed(",
            "        if after_sequence < 0:\n            raise trimmed(",
        ),
        (
            "scheduler_service/app/memory.py",
            "            raise trimmed(after_sequence, self._base)\n",
            "            after_sequence = self._base.sequence\n",
        ),
    ),
    fault(
        "R84",
        "a reader that pauses keeps its transaction",
        "unit/store/test_sqlite.py::test_the_write_ahead_file_stays_small_while_a_reader_pauses",
        (
            f"{STORE}/reader.py",
            "        self._connection = database.open_reader(path)\n",
            (
                "        self._connection = database.open_reader(path)\n"
                '        self._connection.execute("BEGIN")\n'
            ),
        ),
    ),
    fault(
        "R85",
        "space is not given back",
        "unit/store/test_sqlite.py::test_a_pruned_file_shrinks_when_idle"
        " unit/store/test_sqlite.py::test_space_falls_back_after_a_burst_without_a_restart",
        (
            f"{STORE}/pruning.py",
            "if free <= (FREE_PAGES_IDLE if idle else FREE_PAGES_BUSY):",
            "if free <= FREE_PAGES_BUSY:",
        ),
    ),
    fault(
        "R129",
        "ended ids are remembered without a limit",
        f"{E}::test_r129_how_long_an_id_is_remembered",
        (
            f"{CORE}/flows.py",
            "and len(queue) <= rules.retention_count):\n            return\n        past =",
            "and len(queue) <= 10**9):\n            return\n        past =",
        ),
    ),
]
