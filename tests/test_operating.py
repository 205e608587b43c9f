"""The operators' guide says what is so: settings, metrics and events are those of the code."""

import re
from pathlib import Path

import pytest

from scheduler_service.config import Settings
from scheduler_service.obs.catalogue import POOL, SERVICE
from scheduler_service.obs.events import EVENTS

GUIDE = Path(__file__).parent.parent / "scheduler_service" / "OPERATING.md"


def _table(marker: str) -> list[list[str]]:
    """Returns the rows of the table behind `<!-- marker: ... -->`, as they are written."""
    after = GUIDE.read_text().split(f"<!-- {marker}:", 1)[1].split("\n", 1)[1]
    rows = after.split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def _default_text(value: object) -> str:
    value = getattr(value, "value", value)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "empty" if value == "" else str(value)


def _range_text(field) -> str:
    low = [part.ge for part in field.metadata if hasattr(part, "ge")]
    high = [part.le for part in field.metadata if hasattr(part, "le")]
    return f"{low[0]} … {high[0]}" if low else ""


def test_settings():
    """The table of settings has every setting with its default, range and description."""
    expected = [
        [f"`{name}`", _default_text(field.default), _range_text(field), field.description]
        for name, field in Settings.model_fields.items()
        if name != "pools"
    ]

    assert _table("settings") == expected


@pytest.mark.parametrize(
    ("marker", "metrics"), [("service metrics", SERVICE), ("pool metrics", POOL)]
)
def test_metrics(marker, metrics):
    """The tables of metrics have every metric, with kind, labels, unit, stability and help."""
    expected = [
        [
            f"`{name}`",
            metric.kind,
            ", ".join(f"`{label}`" for label in metric.labels),
            metric.unit,
            "yes" if metric.stable else "no",
            metric.help,
        ]
        for name, metric in metrics.items()
    ]

    assert [row[:6] for row in _table(marker)] == expected


def test_events():
    """The table of events has every event with its level and meaning."""
    expected = [[f"`{name}`", event.level, event.meaning] for name, event in EVENTS.items()]

    assert _table("events") == expected


def test_alerts_use_metrics_there_are():
    """Every metric that an alert rule or the text names exists, with the labels it is asked for."""
    text = GUIDE.read_text()
    known = SERVICE | POOL
    parts = r"_(?:bucket|count|sum)"
    named = {re.sub(f"{parts}$", "", n) if n not in known else n
             for n in re.findall(r"\bfairsched_[a-z0-9_]+", text)}  # fmt: skip
    alerts = text.split("```yaml", 1)[1].split("```", 1)[0]
    labelled = re.findall(r"(fairsched_[a-z0-9_]+)\{([a-z_]+)=", alerts)

    assert named - set(known) == set()
    assert len(re.findall(r"alert:", alerts)) >= 8
    assert labelled
    assert all(label in known[name].labels for name, label in labelled)


def test_roles_and_events_named_in_the_text_exist():
    """Every event that the text names in back-ticks is in the table."""
    prefixes = {name.split(".")[0] for name in EVENTS}
    named = {
        name
        for name in re.findall(r"`([a-z]+\.[a-z0-9_]+)`", GUIDE.read_text())
        if name.split(".")[0] in prefixes and not name.endswith((".md", ".proto", ".sqlite3"))
    }

    assert named - set(EVENTS) == set()
