"""Every event that is logged: its level and what it means.

Names are `noun.verb_past`; values are keys, never part of the name.  A test compares this table
with the code and with the one in OPERATING.md.
"""

from typing import NamedTuple


class Event(NamedTuple):
    """An event: "info", "warning" or "error", and what it means."""

    level: str
    meaning: str


_INFO, _WARNING, _ERROR = "info", "warning", "error"

EVENTS: dict[str, Event] = {
    "certificate.read": Event(_INFO, "a changed certificate is in force for new connections"),
    "certificate.refused": Event(_ERROR, "a changed certificate is bad; the old one stays"),
    "chore.failed": Event(_ERROR, "a periodic task failed and will be tried again"),
    "config.applied": Event(_INFO, "pools or users of the configuration were put into force"),
    "config.needs_restart": Event(_WARNING, "changed settings that act only after a restart"),
    "config.refused": Event(_ERROR, "a changed configuration is bad; the old one stays, whole"),
    "config.reloaded": Event(_INFO, "the configuration was read again"),
    "credentials.read": Event(_INFO, "the credentials file is in force"),
    "credentials.refused": Event(_ERROR, "a changed credentials file is bad; the old one stays"),
    "engine.stopped": Event(_ERROR, "the log or a law of the core failed; the process must end"),
    "health.degraded": Event(_WARNING, "health turned bad; says which problem"),
    "health.recovered": Event(_INFO, "a problem is over"),
    "library.failed": Event(_ERROR, "a library reported an error"),
    "library.logged": Event(_WARNING, "a library reported something"),
    "lines.dropped": Event(_WARNING, "log lines could not be written as fast as they came"),
    "log.ended_early": Event(_ERROR, "the log ends before its snapshot; it goes on from there"),
    "log.head_published": Event(_INFO, "sequence and hash of the log's end, to compare with later"),
    "log.tail_cut": Event(_WARNING, "an incomplete write at the end of the log was cut off"),
    "loop.stalled": Event(_WARNING, "the process stood still"),
    "rpc.failed": Event(_ERROR, "a call failed by a defect of the service"),
    "server.channelz_missing": Event(_WARNING, "channelz was asked for and is not installed"),
    "server.ipv4_only": Event(_INFO, "this machine has no IPv6; listening on IPv4"),
    "snapshot.damaged": Event(_WARNING, "a snapshot is damaged; an older one is used"),
    "snapshot.failed": Event(_ERROR, "a snapshot could not be made"),
    "snapshot.made": Event(_INFO, "a snapshot was made"),
    "snapshot.refused": Event(_WARNING, "a snapshot cannot be used; an older one is"),
}
"""By name."""

UNKNOWN = Event(_INFO, "")
"""For an event that is not in the table."""
