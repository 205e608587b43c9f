"""Plants the usual mistakes in the core and shows that golden logs and oracle find each of them."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.mutation.mutants import MUTANTS, Mutant
from tests.support.core import Core, Edit, mutated
from tests.support.driver import Driver
from tests.support.golden import Runner
from tests.support.traces import Trace

GOLDEN = Path(__file__).parent.parent / "golden"
SEEDS = 150
"""Traces within which the oracle looks for a mistake before it takes the golden commands."""

CRASHES = (AssertionError, ArithmeticError, LookupError, TypeError)
"""How a broken core may end; that alone does not count as found."""


def shown_by(core: Core, name: str) -> bool:
    """Whether a golden log comes out otherwise (or not at all) with this core."""
    text = (GOLDEN / f"{name}.txt").read_text()
    try:
        return Runner(core, checked=False).replay(text) != text
    except CRASHES:
        return True


def found_by_oracle(core: Core, mutant: Mutant) -> bool:
    """Whether the oracle objects to a record of a random trace, or else of the golden commands."""
    for seed in range(SEEDS):
        driver = Driver(core=core, strict=False, replica=False)
        with suppress(*CRASHES):
            Trace(seed, driver=driver).run()
        if driver.differences:
            return True
    for name in mutant.golden:
        runner = Runner(core, checked=False)
        with suppress(*CRASHES):
            runner.replay((GOLDEN / f"{name}.txt").read_text())
        if runner.driver.differences:
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_found(mutant):
    """By the golden logs named for it, and by the oracle on its own."""
    core = mutated(*mutant.edits)
    assert [name for name in mutant.golden if not shown_by(core, name)] == []
    assert found_by_oracle(core, mutant)


def test_without_a_mistake_nothing_is_found():
    """Control: a core loaded the same way and changed only in a comment passes everything."""
    core = mutated(Edit("charge", '"""The divisions of the core', '"""All divisions of the core'))
    assert not [path.stem for path in GOLDEN.glob("*.txt") if shown_by(core, path.stem)]
    for seed in range(20):
        driver = Driver(core=core)
        Trace(seed, driver=driver).run()
        assert not driver.differences


def test_a_mistake_that_cannot_be_planted_is_told():
    """When the core changes, a mutant must follow; it is never skipped in silence."""
    with pytest.raises(LookupError, match="0 times"):
        mutated(Edit("charge", "no such line", ""))


def test_names_are_unique():
    """Each mistake is one mistake."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
