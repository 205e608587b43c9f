"""Faults of section G: the server, the transport, the container."""

from tests.reports.fault import fault

LISTENING = "scheduler_service/server/listening.py"
CONNECTION = "clients/python/fairsched/connection.py"
F = "reports/test_f_to_i.py"
LIFECYCLE = "integration/test_lifecycle.py"

FAULTS = [
    fault(
        "R92",
        "clients that ping are cut off",
        f"{LIFECYCLE}::test_clients_may_ping",
        (LISTENING, "settings.keepalive_min_seconds * _MILLIS,", "300 * _MILLIS,"),
    ),
    fault(
        "R92",
        "clients that ping without a call are cut off",
        f"{LIFECYCLE}::test_clients_may_ping",
        (
            LISTENING,
            '("grpc.keepalive_permit_without_calls", 1)',
            '("grpc.keepalive_permit_without_calls", 0)',
        ),
    ),
    fault(
        "R93",
        "a hundred calls at once, waiting ones too",
        f"{F}::test_r93_parked_calls_and_streams_hold_nobody_up",
        (
            LISTENING,
            '("grpc.max_concurrent_streams", settings.concurrent_streams)',
            '("grpc.max_concurrent_streams", 100)',
        ),
    ),
    fault(
        "R95",
        "a stop does not answer the calls that wait",
        f"{LIFECYCLE}::test_sigterm_with_many_waiting_calls",
        (
            "scheduler_service/server/service.py",
            "            running.app.drain()\n",
            "            running.app.attendance.close()\n",
        ),
    ),
    fault(
        "R97",
        "the context of every call is kept",
        f"{F}::test_r97_opened_and_cancelled_streams_leak_nothing_to_speak_of",
        (
            "scheduler_service/rpc/calls.py",
            "        runtime.running_count += 1\n",
            (
                "        runtime.running_count += 1\n"
                '        serve.__dict__.setdefault("kept", []).append([context, request])\n'
            ),
        ),
    ),
    fault(
        "R99",
        "watches of the health are not told of the end",
        f"{LIFECYCLE}::test_a_watch_is_told_of_the_end",
        (
            "scheduler_service/rpc/health.py",
            "cancel()\n        await self._servicer.enter_graceful_shutdown()\n",
            "cancel()\n",
        ),
    ),
    fault(
        "R99",
        "a watch ends without a status that says why",
        "integration/test_audit.py::test_stopping_ends_watches_with_a_status",
        (
            "scheduler_service/rpc/audit_servicer.py",
            '        raise NotReady("DRAINING", "The service is stopping.")\n',
            "",
        ),
    ),
    fault(
        "R100",
        "the service forks",
        f"{F}::test_r100_the_service_never_forks",
        (
            "scheduler_service/store/snapshotter.py",
            "    began_ns = clock.monotonic_ns()\n    lock = directory.lock_snapshots()\n",
            (
                "    began_ns = clock.monotonic_ns()\n"
                "    if os.fork():\n"
                "        return Made(0, 0, 0, 0)\n"
                "    lock = directory.lock_snapshots()\n"
            ),
        ),
    ),
    fault(
        "R100",
        "a pool of processes begins them in the way that is the default",
        f"{F}::test_r100_the_service_never_forks",
        (
            "scheduler_service/sim/pool.py",
            'ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))',
            "ProcessPoolExecutor(jobs)",
        ),
    ),
    fault(
        "R100",
        "a client goes on in a forked child",
        "clients/test_misuse.py::test_after_a_fork_it_refuses",
        (
            "clients/python/fairsched/sync_calls.py",
            (
                "        if self._process and os.getpid() != self._process:\n"
                "            raise errors.MisuseError(forked(self._process))\n"
            ),
            "",
        ),
    ),
    fault(
        "R101",
        "a client goes on from another event loop",
        "clients/test_misuse.py::test_second_loop_is_refused",
        (
            "clients/python/fairsched/async_calls.py",
            "if asyncio.get_running_loop() is not self.loop:",
            "if asyncio.get_running_loop().is_closed():",
        ),
    ),
    fault(
        "R102",
        "two servers share a port",
        f"{LIFECYCLE}::test_a_second_instance_on_the_port_is_refused",
        (LISTENING, '("grpc.so_reuseport", 0)', '("grpc.so_reuseport", 1)'),
    ),
    fault(
        "R102",
        "two services share a directory",
        f"{LIFECYCLE}::test_a_second_instance_on_the_directory_is_refused",
        (
            "scheduler_service/store/directory.py",
            "fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
            "fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ),
    ),
    fault(
        "R103",
        "without IPv6 it does not start",
        f"{LIFECYCLE}::test_without_ipv6_it_listens_on_ipv4",
        (LISTENING, "        if host != _ANY_IPV6:\n", "        if host:\n"),
    ),
    fault(
        "R104",
        "a page of users has no end",
        "integration/test_admin_lists.py::test_a_hundred_thousand_users",
        (
            "scheduler_service/rpc/admin_lists.py",
            "            if len(users) == size or scanned == SCAN_MAX:\n",
            "            if scanned == SCAN_MAX:\n",
        ),
    ),
    fault(
        "R104",
        "a message has no limit",
        "integration/test_bad_input.py::test_a_message_past_the_limit_is_refused",
        (
            LISTENING,
            '("grpc.max_receive_message_length", settings.message_bytes)',
            '("grpc.max_receive_message_length", -1)',
        ),
    ),
    fault(
        "R105",
        "clients back off for minutes",
        "clients/test_worker.py::test_work_survives_a_restart_of_the_service"
        " clients/test_gateway_away.py::test_wait_survives_a_restart_of_the_service",
        (
            CONNECTION,
            '("grpc.initial_reconnect_backoff_ms", 100)',
            '("grpc.initial_reconnect_backoff_ms", 120_000)',
        ),
        (
            CONNECTION,
            "RECONNECT_BACKOFF_MAX_MS = 5_000\n",
            "RECONNECT_BACKOFF_MAX_MS = 240_000\n",
        ),
    ),
    fault(
        "R108",
        "a shell is process 1",
        "compose/test_files.py::test_image_runs_unprivileged_and_gets_signals",
        (
            "scheduler_service/Dockerfile",
            'ENTRYPOINT ["fairsched"]\nCMD ["serve"]\n',
            "ENTRYPOINT fairsched serve\n",
        ),
    ),
]
