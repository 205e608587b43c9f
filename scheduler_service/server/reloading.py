"""Putting configuration into force: at the start, and when the file has changed (SIGHUP)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scheduler_service.app.engine import Engine
from scheduler_service.app.ports import Reporter
from scheduler_service.config import (
    AppliedFiles,
    ConfigRefused,
    Settings,
    load,
    plan,
    pools_of,
)
from scheduler_service.core import commands as c

Loader = Callable[[], Settings]
"""Reads the sources again; raises `ConfigRefused`."""


def loader(file: Path | None, flags: Mapping[str, Any] | None = None) -> Loader:
    """Returns a function that reads these sources."""
    return lambda: load(file, flags)


class Configuration:
    """The configuration in force, and how it changes.

    Args:
        settings: In force now.
        data_dir: Where what was applied is kept.
        report: Receives what is done.

    Attributes:
        settings: In force now.
    """

    def __init__(self, settings: Settings, data_dir: Path, report: Reporter) -> None:
        self.settings = settings
        self._files = AppliedFiles(data_dir)
        self._report = report

    async def apply_at_start(self, engine: Engine, durability: str) -> None:
        """Puts into force what has changed since the configuration applied last.

        Raises:
            ConfigRefused: It cannot be applied as a whole.
            NotReady: LOG_STALLED.
        """
        open_log(engine, durability, engine.state.config_digest)
        await self._apply(engine, self.settings, durability)

    async def reload(self, engine: Engine, read: Loader) -> bool:
        """Reads the configuration again; returns whether it is in force now.

        A bad one is refused whole: nothing changes.
        """
        try:
            settings = read()
            await self._apply(engine, settings, engine.state.durability)
        except ConfigRefused as error:
            self._report("config.refused", problems=[list(problem) for problem in error.problems])
            return False
        waiting = [
            key
            for key, field in Settings.model_fields.items()
            if getattr(settings, key) != getattr(self.settings, key) and not _is_live(field)
        ]
        live = {
            key: getattr(settings, key)
            for key, field in Settings.model_fields.items()
            if _is_live(field)
        }
        self.settings = self.settings.model_copy(update=live)
        self._report("config.reloaded", digest=engine.state.config_digest)
        if waiting:
            self._report("config.needs_restart", keys=waiting)
        return True

    async def _apply(self, engine: Engine, settings: Settings, durability: str) -> None:
        pools = pools_of(settings)
        before = self._files.read(engine.state.config_digest)
        changes = plan(engine.state, before, pools)
        digest = self._files.write(pools)
        changes.apply(engine)
        open_log(engine, durability, digest)
        await engine.durable()
        self._files.keep_only(digest)
        if changes.policies or changes.users:
            self._report(
                "config.applied",
                digest=digest,
                pools=[name for name, _, _ in changes.policies],
                users=len(changes.users),
            )


def open_log(engine: Engine, durability: str, digest: str) -> None:
    """Writes down under what the log goes on, if that has changed."""
    engine.apply(
        c.OpenLog(
            now_ns=engine.now_ns(),
            nonce=engine.nonce(),
            durability=durability,
            config_digest=digest,
        )
    )


def _is_live(field: Any) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("live"))
