"""What observers of one running service work with: auditors, operators, metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from scheduler_service.app.audit import CatchUp, DecisionLog
from scheduler_service.app.engine import Engine
from scheduler_service.app.ports import Store
from scheduler_service.app.tally import Tally
from scheduler_service.core.errors import LimitReached
from scheduler_service.estimator.learning import PoolLearner

WATCHERS_MAX = 64
"""Watches of the decision log that may be open at once."""


@cache
def service_version() -> str:
    """Returns the version of the installed package; "unknown" when it is run from its source."""
    try:
        return version("fairsched")
    except PackageNotFoundError:
        return "unknown"


@dataclass(slots=True)
class Observation:
    """Everything that only looks.

    Attributes:
        engine: The single writer.
        store: For its sizes.
        log: The decision log, for readers.
        catch_up: Lets readers that are behind rest.
        tally: What happened since the service started.
        learners: What the estimator has learned, by pool.
        watchers_max: Watches that may be open at once.
        watchers: Watches that are open.
    """

    engine: Engine
    store: Store
    log: DecisionLog
    catch_up: CatchUp
    tally: Tally
    learners: Mapping[str, PoolLearner] = field(default_factory=dict)
    watchers_max: int = WATCHERS_MAX
    watchers: int = 0

    @classmethod
    def of(
        cls,
        engine: Engine,
        store: Store,
        learners: Mapping[str, PoolLearner] | None = None,
        *,
        watchers_max: int = WATCHERS_MAX,
    ) -> "Observation":
        """Begins to observe `engine`; to be called on its loop, before it starts."""
        tally = Tally(engine.now_ns(), list(engine.state.pools))
        engine.listeners.append(tally.decided)
        log = DecisionLog(engine, store)
        return cls(
            engine=engine,
            store=store,
            log=log,
            catch_up=CatchUp(engine),
            tally=tally,
            learners={} if learners is None else learners,
            watchers_max=watchers_max,
        )

    def take_watch(self) -> None:
        """Takes a place for a watch; `free_watch` gives it back.

        Raises:
            LimitReached: WATCHERS_FULL.
        """
        if self.watchers >= self.watchers_max:
            raise LimitReached(
                "WATCHERS_FULL",
                f"As many watches as may be are open already: {self.watchers:,}.",
                limitWatches=self.watchers_max,
            )
        self.watchers += 1

    def free_watch(self) -> None:
        """Gives the place of a watch back."""
        self.watchers -= 1

    def close(self) -> None:
        """Ends reading; watches that wait are woken."""
        self.log.close()
