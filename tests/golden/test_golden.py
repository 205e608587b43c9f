"""Golden decision logs: every file is run and must come out as it was reviewed."""

from pathlib import Path

import pytest

from tests.support.golden import replayed

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path, request):
    """The decisions are those under review."""
    text = path.read_text()
    found = replayed(text)
    if request.config.getoption("--rewrite", default=False):
        path.write_text(found)
        return
    assert found == text


def test_the_articles_table():
    """The eight rows of SFQ §2.7 are in the golden log as the article prints them."""
    text = (Path(__file__).parent / "sfq_2_7.txt").read_text()
    rows = [
        ("0", "A", "+3", "3", "0"),
        ("0", "B", "+1", "3", "1"),
        ("1", "B", "+1", "3", "2"),
        ("2", "B", "+1", "3", "3"),
        ("3", "A", "+3", "6", "3"),
        ("3", "B", "+1", "6", "4"),
        ("4", "B", "+1", "6", "5"),
        ("5", "B", "+1", "6", "6"),
    ]
    lines = [f"{user} {charge} v={v} S_A={a} S_B={b}" for v, user, charge, a, b in rows]
    assert "\n".join(lines) in text
