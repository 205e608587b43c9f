"""Text in pictures: names of any length and script, numbers with a unit that fits.

Names are given by callers of the service, so that anything may be in them.  They are shown as they
are, shortened in the middle; what the picture's font does not have is taken from another one if
there is one on the machine, and is a box otherwise, without a word on the terminal.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
import warnings
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FONT: Final = "DejaVu Sans"
"""The font of all pictures; it comes with matplotlib."""

_WIDE_FONTS: Final = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans CJK KR",
    "Source Han Sans",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Yu Gothic",
    "Microsoft YaHei",
    "SimHei",
    "Malgun Gothic",
    "Droid Sans Fallback",
    "Arial Unicode MS",
    "Unifont",
)
_NAME_WIDTH: Final = 28
_MILLI: Final = 1e-3
_LEAST_MS: Final = 0.1
_ENOUGH: Final = 100


def name(text: str, width: int = _NAME_WIDTH) -> str:
    """Returns a name of at most `width` columns: its beginning and its end if it is longer."""
    text = "".join(c if c.isprintable() else "�" for c in text)
    if sum(map(_columns, text)) <= width:
        return text
    tail = _within(text[::-1], (width - 1) // 3)[::-1]
    return f"{_within(text, width - 1 - (width - 1) // 3)}…{tail}"


def _columns(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _within(text: str, width: int) -> str:
    """Returns the beginning that fits."""
    for end, character in enumerate(text):
        width -= _columns(character)
        if width < 0:
            return text[:end]
    return text


def title(text: str, width: int) -> str:
    """Returns a title in as many lines as it needs."""
    return "\n".join(textwrap.wrap(text, width))


def unit_of(unit: str, values: Iterable[float]) -> tuple[str, float]:
    """Returns the unit in which values are drawn, and the factor: short times are milliseconds."""
    if unit == "seconds" and 0 < max((v for v in values if not math.isnan(v)), default=0.0) < 1:
        return "milliseconds", 1 / _MILLI
    return unit, 1.0


def number(value: float, unit: str) -> str:
    """Returns a value without an exponent; a time has its own unit."""
    if math.isnan(value):
        return "-"
    if unit in {"seconds", "milliseconds"}:
        seconds = value if unit == "seconds" else value * _MILLI
        if 0 < seconds < _LEAST_MS * _MILLI:
            return f"<{_LEAST_MS:g} ms"
        if 0 < seconds < 1:
            return f"{_plain(seconds / _MILLI)} ms"
        return f"{_plain(seconds)} s"
    return _plain(value)


def _plain(value: float) -> str:
    if value == 0 or abs(value) >= _ENOUGH:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def logarithmic(axis: Any) -> None:
    """Makes a vertical axis logarithmic, with plain numbers at its powers of ten."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axis.yaxis.set_minor_formatter("")


@contextmanager
def any_script(texts: Sequence[str] = ()) -> Iterator[None]:
    """Draws and saves texts of any script within: no warnings, no formulas, fonts that fit."""
    import matplotlib as mpl  # noqa: PLC0415 - optional, of the extra `sim`

    style: Any = {"text.parse_math": False, "font.family": [FONT]}
    if any(not _has(FONT, text) for text in texts):
        style["font.family"] = [FONT, *_found()]
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        warnings.filterwarnings("ignore", "Matplotlib currently does not support", UserWarning)
        yield


def _has(font: str, text: str) -> bool:
    from matplotlib import font_manager  # noqa: PLC0415 - optional, of the extra `sim`

    glyphs = font_manager.get_font(font_manager.findfont(font)).get_charmap()
    return all(ord(c) in glyphs or c.isspace() for c in text)


@lru_cache(maxsize=1)
def _found() -> tuple[str, ...]:
    """Returns the fonts of this machine that have other scripts."""
    from matplotlib import font_manager  # noqa: PLC0415 - optional, of the extra `sim`

    there = {font.name for font in font_manager.fontManager.ttflist}
    return tuple(font for font in _WIDE_FONTS if font in there)
