"""SIGHUP and a first start without a file: what of the configuration acts, and when."""

import signal

import grpc

from fairsched.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
)
from tests.support.child import until
from tests.support.live import POOL


class TestReload:
    """SIGHUP: what changed in the file acts; a bad file does nothing."""

    async def test_a_changed_file_acts_at_once(self, child, tmp_path):
        """Only changed keys act, live changes stand, and it survives a restart (R126)."""
        file = tmp_path / "config.toml"
        file.write_text(
            '[pools.default]\ncost_source = "caller"\nquota_k = 3\nmax_passes = 5\n'
            "[pools.default.users.alice]\nweight_milli = 2000\n"
        )
        one = child(config_file=str(file))
        port = await one.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            live = admin_pool = _Admin(channel)
            await live.update(max_passes=9)
            file.write_text(
                '[pools.default]\ncost_source = "caller"\nquota_k = 4\nmax_passes = 5\n'
                '[pools.default.users.bob]\nmax_in_flight = 1\n[pools.extra]\npreset = "sfq"\n'
            )
            one.signal(signal.SIGHUP)
            await until(lambda: one.reported("config.reloaded"))
            policy = await admin_pool.policy()
            assert (policy.quota_k, policy.max_passes) == (4, 9)
            assert (await admin_pool.user("alice")).weight_milli == 1000
            assert (await admin_pool.user("bob")).max_in_flight == 1
            assert (await admin_pool.policy("extra")).preset == "sfq"

            file.write_text("[pools.default]\nquota_k = 0\nmax_passes = 2\n")
            one.signal(signal.SIGHUP)
            await until(lambda: one.reported("config.refused"))
            policy = await admin_pool.policy()
            assert (policy.quota_k, policy.max_passes) == (4, 9)
            (refusal,) = one.reported("config.refused")
            assert "quota_k" in str(refusal["problems"])

        file.write_text('[pools.default]\ncost_source = "caller"\nquota_k = 4\nmax_passes = 5\n')
        one.signal(signal.SIGTERM)
        await one.ended()
        two = child(config_file=str(file))
        port = await two.serving()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            policy = await _Admin(channel).policy()
            assert (policy.quota_k, policy.max_passes) == (4, 9)
            assert (await _Admin(channel).user("bob")).max_in_flight == 0

    async def test_what_needs_a_restart_is_said(self, child, tmp_path):
        """Settings that cannot change live are named, the others act."""
        file = tmp_path / "config.toml"
        file.write_text("grace_seconds = 5\n")
        one = child(config_file=str(file))
        await one.serving()
        file.write_text('grace_seconds = 6\nlog_level = "warning"\n')
        one.signal(signal.SIGHUP)
        await until(lambda: one.reported("config.needs_restart"))

        (event,) = one.reported("config.needs_restart")
        assert event["keys"] == ["grace_seconds"]

    async def test_the_first_start_without_a_file_makes_a_pool(self, service):
        """A newcomer has a pool `default` that takes stated costs, under fair_qba."""
        admin = _Admin(service.channel)
        policy = await admin.policy()

        assert policy.preset == "fair_qba"
        assert policy.cost_source == 2


class _Admin:
    """Short ways to look at pools and users."""

    def __init__(self, channel):
        self._stub = admin_service_pb2_grpc.AdminServiceStub(channel)

    async def policy(self, pool=POOL):
        answer = await self._stub.GetPool(admin_service_pb2.GetPoolRequest(pool=pool))
        return answer.pool.policy

    async def update(self, **fields):
        await self._stub.UpdatePool(admin_service_pb2.UpdatePoolRequest(pool=POOL, policy=fields))

    async def user(self, user_id):
        request = admin_service_pb2.SetUserRequest(pool=POOL, user_id=user_id)
        return (await self._stub.SetUser(request)).user
