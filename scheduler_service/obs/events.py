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
    "data.open_to_others": Event(
        _WARNING, "other users of this machine can read the data directory"
    ),
    "engine.stopped": Event(_ERROR, "the log or a law of the core failed; the process must end"),
    "health.degraded": Event(_WARNING, "health turned bad; says which problem"),
    "health.recovered": Event(_INFO, "a problem is over"),
    "library.failed": Event(_ERROR, "a library reported an error"),
    "library.logged": Event(_WARNING, "a library reported something"),
    "lines.dropped": Event(_WARNING, "log lines could not be written as fast as they came"),
    "log.closed": Event(_INFO, "everything decided is kept; sequence and hash of the end"),
    "log.ended_early": Event(_ERROR, "the log ends before its snapshot; it goes on from there"),
    "log.given_up": Event(
        _ERROR, "the disk did not take the last decisions in time; nobody was told of them"
    ),
    "log.head_published": Event(_INFO, "sequence and hash of the log's end, to compare with later"),
    "log.replayed": Event(_INFO, "the log was read; how much, from which snapshot, how long"),
    "log.replaying": Event(_INFO, "how far reading the log has got"),
    "log.space_low": Event(_ERROR, "the disk is nearly full; nothing new is accepted"),
    "log.space_recovered": Event(_INFO, "there is enough disk space again"),
    "log.tail_cut": Event(_WARNING, "an incomplete write at the end of the log was cut off"),
    "loop.stalled": Event(_WARNING, "the process stood still"),
    "payloads.missing": Event(_ERROR, "payloads of live requests were lost with a damaged tail"),
    "rpc.failed": Event(_ERROR, "a call failed by a defect of the service"),
    "server.channelz_missing": Event(_WARNING, "channelz was asked for and is not installed"),
    "server.ipv4_only": Event(_INFO, "this machine has no IPv6; listening on IPv4"),
    "service.failed": Event(_ERROR, "the service failed while it started"),
    "service.killed": Event(_WARNING, "a second signal ended the process at once"),
    "service.listening": Event(_INFO, "the ports are bound; calls are answered UNAVAILABLE yet"),
    "service.refused": Event(_ERROR, "the service refuses to start; says why"),
    "service.serving": Event(_INFO, "calls are answered; where the log ends"),
    "service.stopped": Event(_INFO, "everything is closed"),
    "service.stopping": Event(_INFO, "a signal asks it to stop"),
    "snapshot.damaged": Event(_WARNING, "a snapshot is damaged; an older one is used"),
    "snapshot.failed": Event(_ERROR, "a snapshot could not be made"),
    "snapshot.given_up": Event(_WARNING, "the grace time was too short for a last snapshot"),
    "snapshot.made": Event(_INFO, "a snapshot was made"),
    "snapshot.refused": Event(_WARNING, "a snapshot cannot be used; an older one is"),
    "task.failed": Event(_ERROR, "a part of the service ended by a defect"),
    "violation.not_kept": Event(_ERROR, "a broken law could not be written down for the metric"),
}
"""By name."""

UNKNOWN = Event(_INFO, "")
"""For an event that is not in the table."""
