"""Pools and users as operators set them: each change is a command of the core, hence in the log.

A call that asks for what is already so does nothing and is answered alike.
"""

from fairsched.v1 import admin_service_pb2 as pb
from scheduler_service.app.limits import POOLS_MAX
from scheduler_service.app.policies import policy_digest
from scheduler_service.core import commands as c
from scheduler_service.core.errors import Conflict, LimitReached
from scheduler_service.core.policy import WEIGHT_MILLI_MAX, PoolPolicy, UserSettings
from scheduler_service.rpc.admin_desk import AdminDesk, checked, require_all_users, require_known
from scheduler_service.rpc.convert_admin import pool_message, user_message
from scheduler_service.rpc.convert_policy import created_policy, updated_policy
from scheduler_service.rpc.identity import Identity
from scheduler_service.rpc.validate import Checks

_CAP_MAX = 10**9
_NO_SETTINGS = UserSettings()


class AdminChanges(AdminDesk):
    """Changes pools and users."""

    # -- pools --------------------------------------------------------------------------------

    def create_pool(self, x: pb.CreatePoolRequest, caller: Identity) -> pb.CreatePoolResponse:
        """Creates a pool.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Conflict: POOL_EXISTS.
            LimitReached: POOLS_FULL.
        """
        checks = Checks()
        checks.id("pool", x.pool)
        policy = checked(checks, lambda: created_policy(x.policy))
        caller.require_pool(x.pool)
        require_all_users(caller)
        pools = self.engine.state.pools
        if x.pool in pools:
            raise Conflict("POOL_EXISTS", f"There is a pool {x.pool!r} already.", pool=x.pool)
        if len(pools) >= POOLS_MAX:
            raise LimitReached(
                "POOLS_FULL",
                f"There are as many pools as may be: {len(pools):,}.",
                limitPools=POOLS_MAX,
            )
        self._configure(x.pool, policy, caller, create=True)
        return pb.CreatePoolResponse(pool=pool_message(pools[x.pool]))

    def update_pool(self, x: pb.UpdatePoolRequest, caller: Identity) -> pb.UpdatePoolResponse:
        """Changes a pool's policy.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN.
            WrongState: POOL_MODE.
        """
        checks = Checks()
        checks.id("pool", x.pool)
        known = self.engine.state.pools.get(x.pool)
        base = PoolPolicy() if known is None else known.policy
        policy = checked(checks, lambda: updated_policy(base, x.policy, x.update_mask.paths))
        require_all_users(caller)
        pool = self.known_pool(x.pool, caller, checks)
        if policy != pool.policy:
            self._configure(x.pool, policy, caller, create=False)
        return pb.UpdatePoolResponse(pool=pool_message(pool))

    def _configure(self, name: str, policy: PoolPolicy, caller: Identity, *, create: bool) -> None:
        engine = self.engine
        command = c.ConfigurePool(
            **self.stamp(caller),
            pool=name,
            policy=policy,
            policy_digest=policy_digest(policy),
            create=create,
        )
        engine.apply(command)

    def delete_pool(self, x: pb.DeletePoolRequest, caller: Identity) -> pb.DeletePoolResponse:
        """Deletes a pool that holds no request and that no worker asks for work.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN.
            WrongState: POOL_NOT_EMPTY, POOL_HAS_WORKERS.
        """
        require_all_users(caller)
        pool = self.known_pool(x.pool, caller, Checks())
        engine = self.engine
        engine.apply(c.DeletePool(**self.stamp(caller), pool=pool.name, force=x.force))
        return pb.DeletePoolResponse()

    # -- users --------------------------------------------------------------------------------

    def set_user(self, x: pb.SetUserRequest, caller: Identity) -> pb.SetUserResponse:
        """Sets a user's weight and cap.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN.
        """
        checks = Checks()
        checks.id("user_id", x.user_id)
        if x.HasField("weight_milli"):
            checks.number("weight_milli", x.weight_milli, 0, WEIGHT_MILLI_MAX)
        if x.HasField("max_in_flight"):
            checks.number("max_in_flight", x.max_in_flight, -1, _CAP_MAX)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller)
        known = pool.settings.get(user_id, _NO_SETTINGS)
        weight = x.weight_milli if x.HasField("weight_milli") else known.weight_milli
        cap = x.max_in_flight if x.HasField("max_in_flight") else known.max_in_flight
        engine = self.engine
        if (weight, cap) != (known.weight_milli, known.max_in_flight):
            command = c.ConfigureUser(
                **self.stamp(caller),
                pool=pool.name,
                user_id=user_id,
                weight_milli=weight,
                max_in_flight=cap,
            )
            engine.apply(command)
        return pb.SetUserResponse(user=user_message(pool, user_id, engine.now_ns(), self.seen))

    def forget_user(self, x: pb.ForgetUserRequest, caller: Identity) -> pb.ForgetUserResponse:
        """Deletes the settings of a user without work.

        Raises:
            InvalidCommand: Names every bad field.
            Denied: POOL_DENIED, USER_DENIED.
            Unknown: POOL_UNKNOWN, USER_UNKNOWN.
            WrongState: USER_HAS_WORK.
        """
        checks = Checks()
        checks.id("user_id", x.user_id)
        pool = self.known_pool(x.pool, caller, checks)
        user_id = self.user_in(pool, x.user_id, caller)
        require_known(pool, user_id)
        engine = self.engine
        engine.apply(c.ForgetUser(**self.stamp(caller), pool=pool.name, user_id=user_id))
        return pb.ForgetUserResponse()
