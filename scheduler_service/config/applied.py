"""What a configuration changes, given the one applied last.

Pools and users can be changed live as well, and a file must not undo that: only keys that differ
from the configuration applied last are put into force, everything else stays as it is now.  A key
that was taken out goes back to the preset; a user that was taken out, to the pool's defaults; a
pool that was taken out stays.

What was applied is kept in the data directory, and its digest stands in the log:

    1. `applied-<digest>.json` is written and synced.   Crash: the log names the one before.
    2. The changes and the digest become durable.       Crash: a start finds both in agreement.
    3. Files of other digests are removed.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from scheduler_service.app.engine import Engine
from scheduler_service.app.policies import policy_digest
from scheduler_service.config.loading import ConfigRefused
from scheduler_service.config.pools import POLICY_KEYS, policy_of
from scheduler_service.core import commands as c
from scheduler_service.core.errors import InvalidCommand
from scheduler_service.core.policy import POOLS_MAX, PRESETS, PoolPolicy, UserSettings
from scheduler_service.core.state import Pool, State

PEER = "config"
"""Whom the log names for changes that come from the configuration."""

_DIGEST_BYTES = 8
_PREFIX = "applied-"
_NO_CAP_OF_ITS_OWN = -1

Pools = Mapping[str, Mapping[str, Any]]
"""Pools as `loading.pools_of` gives them."""


def digest_of(pools: Pools) -> str:
    """Returns the digest of a configuration's pools: 16 hexadecimal digits."""
    text = json.dumps(pools, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


class AppliedFiles:
    """The configuration applied last, in the data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, digest: str) -> Pools:
        """Returns the configuration with this digest; nothing if it is not there."""
        try:
            found: Pools = json.loads(self._path(digest).read_text())
        except (OSError, ValueError):
            return {}
        return found if digest_of(found) == digest else {}

    def write(self, pools: Pools) -> str:
        """Keeps a configuration, durably, and returns its digest."""
        digest = digest_of(pools)
        path = self._path(digest)
        part = path.with_suffix(".part")
        with part.open("w") as file:
            json.dump(pools, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return digest

    def keep_only(self, digest: str) -> None:
        """Removes every other configuration."""
        for path in self._directory.glob(f"{_PREFIX}*"):
            if path != self._path(digest):
                path.unlink(missing_ok=True)

    def _path(self, digest: str) -> Path:
        return self._directory / f"{_PREFIX}{digest}.json"


@dataclass(slots=True)
class Plan:
    """What is to change.

    Attributes:
        policies: (pool, whole new policy, whether the pool is new).
        users: (pool, user, settings).
    """

    policies: list[tuple[str, PoolPolicy, bool]] = field(default_factory=list)
    users: list[tuple[str, str, UserSettings]] = field(default_factory=list)

    def apply(self, engine: Engine) -> None:
        """Puts all of it into force, in one turn."""
        for name, policy, new in self.policies:
            engine.apply(
                c.ConfigurePool(
                    now_ns=engine.now_ns(),
                    nonce=engine.nonce(),
                    peer=PEER,
                    pool=name,
                    policy=policy,
                    policy_digest=policy_digest(policy),
                    create=new,
                )
            )
        for name, user_id, settings in self.users:
            engine.apply(
                c.ConfigureUser(
                    now_ns=engine.now_ns(),
                    nonce=engine.nonce(),
                    peer=PEER,
                    pool=name,
                    user_id=user_id,
                    weight_milli=settings.weight_milli,
                    max_in_flight=settings.max_in_flight,
                )
            )


def plan(state: State, before: Pools, after: Pools) -> Plan:
    """Returns what `after` changes, given that `before` was applied last.

    Raises:
        ConfigRefused: It cannot be applied as a whole, so nothing of it is.
    """
    found = Plan()
    problems: list[tuple[str, str]] = []
    for name, entry in after.items():
        pool = state.pools.get(name)
        try:
            policy = _new_policy(name, pool, before.get(name, {}), entry)
        except InvalidCommand as error:
            problems += error.violations
            continue
        if pool is None:
            found.policies.append((name, policy, True))
        elif policy != pool.policy:
            if policy.mode is not pool.policy.mode and pool.requests:
                problems.append((f"pools.{name}.mode", "changes only while the pool is empty"))
            found.policies.append((name, policy, False))
        found.users += _new_users(name, pool, before.get(name, {}), entry)
    if len(state.pools.keys() | after.keys()) > POOLS_MAX:
        problems.append(("pools", f"must be at most {POOLS_MAX}, those that exist included"))
    if problems:
        raise ConfigRefused(problems)
    return found


def _new_policy(
    name: str, pool: Pool | None, before: Mapping[str, Any], after: Mapping[str, Any]
) -> PoolPolicy:
    if pool is None or before.get("preset") != after.get("preset"):
        return policy_of(name, after)
    changed = {
        key: value
        for key, value in after.items()
        if key in POLICY_KEYS and before.get(key) != value
    }
    removed = [key for key in before if key in POLICY_KEYS and key not in after]
    if not changed and not removed:
        return pool.policy
    preset = PRESETS[pool.policy.preset]
    fields = [POLICY_KEYS[key] for key in removed]
    back = {name: getattr(preset, name) for name in fields}
    return policy_of(name, changed, msgspec.structs.replace(pool.policy, **back))


def _new_users(
    name: str, pool: Pool | None, before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[tuple[str, str, UserSettings]]:
    """Returns users whose settings the configuration changes; what it never stated stays."""
    was, now = before.get("users", {}), after.get("users", {})
    found = []
    for user_id in {**was, **now}:
        old, new = was.get(user_id, {}), now.get(user_id, {})
        if old == new:
            continue
        live = UserSettings() if pool is None else pool.settings.get(user_id, UserSettings())
        weight, cap = live.weight_milli, live.max_in_flight
        if old.get("weight_milli") != new.get("weight_milli"):
            weight = new.get("weight_milli", 0)
        if old.get("max_in_flight") != new.get("max_in_flight"):
            cap = new.get("max_in_flight", _NO_CAP_OF_ITS_OWN)
        if (weight, cap) != (live.weight_milli, live.max_in_flight):
            settings = UserSettings(weight_milli=weight, max_in_flight=cap)
            found.append((name, user_id, settings))
    return found
