"""Quarantine: take slow nodes out of service with evidence, and release them with a reason.

A released node is on trial: a fresh probe must pass before anything is timed on it.

The log ``events.jsonl`` is authoritative. Every quarantine, release and passed trial is appended to it, and lines are
never changed. In addition, each node in quarantine has a mark file in ``quarantined/``. The prolog of a scheduler is a
shell script, which can easily test for such a file. The mark is written before the log line of a quarantine, and
removed after the log line of a release. A crash in between may therefore refuse a healthy node, but never admits a node
in quarantine.
"""

from datetime import datetime, timedelta
from pathlib import Path

from regbot.errors import UserError
from regbot.nodes.history import append_record, check_host, lock_folder, read_records
from regbot.records.baseline import format_time, parse_time
from regbot.records.files import write_text
from regbot.records.node import Evidence, NodeEvent, NodeState, NodeVerdict
from regbot.text.clip import clip_message
from regbot.text.printable import printable

EVENTS = "events.jsonl"
"""The log of events."""
MARKS = "quarantined"
"""The folder of mark files."""
AUTOMATIC_AUTHOR = "regbot"
"""Author of events that regbot causes automatically."""
REPEAT_DAYS = 7
"""If regbot quarantines a node a second time within this many days, the node was released too early or its fault is
intermittent."""


def quarantine(folder: Path, host: str, evidence: Evidence) -> list[str]:
    """Take ``host`` out of service, and return warnings. The change is on disk when this function returns.

    If the node is already in quarantine, another event with the evidence is added to the log. Raises UserError,
    OSError.
    """
    if check_host(host) != evidence.host:
        raise UserError(f"the evidence is about {evidence.host}, not about {host}")
    with lock_folder(folder):
        earlier_events = [event for event in read_events(folder) if event.host == host]
        _write_mark(folder, host, evidence)
        event = NodeEvent(
            event="quarantined",
            host=host,
            when=evidence.when,
            who=evidence.who,
            automatic=evidence.automatic,
            reason=evidence.reason,
            evidence=evidence,
        )
        append_record(folder / EVENTS, event)
    return _warn_of_repetition(earlier_events, event)


def release(folder: Path, host: str, who: str, reason: str, now: datetime) -> NodeEvent:
    """Put ``host`` back into service, on trial. Raises UserError if it is not in quarantine, or ``reason`` is empty."""
    if not reason.strip():
        raise UserError("a release needs a reason: say what was repaired or checked")
    with lock_folder(folder):
        in_quarantine = quarantined_nodes(folder)
        if check_host(host) not in in_quarantine:
            names = ", ".join(sorted(in_quarantine)[:8]) or "none"
            raise UserError(f"{host} is not in quarantine", f"nodes in quarantine: {names}")
        event = NodeEvent(
            event="released",
            host=host,
            when=format_time(now),
            who=printable(who),
            automatic=False,
            reason=printable(reason),
        )
        append_record(folder / EVENTS, event)
        (folder / MARKS / host).unlink(missing_ok=True)
    return event


def finish_trial(folder: Path, verdict: NodeVerdict, now: datetime) -> NodeEvent | None:
    """End the trial of a node if its fresh probe was not slow. Return the event; None if no trial ended.

    The status "unknown" means that there was nothing to compare the probe with. If regbot quarantined the node for its
    speed, such a probe does not end the trial. If an operator quarantined it for another reason, the probe does.
    """
    with lock_folder(folder):
        release_event = nodes_on_trial(folder).get(verdict.host)
        if release_event is None or verdict.status == "slow":
            return None
        last_quarantine = next(  # only a quarantine has evidence
            past for past in reversed(read_events(folder)) if past.host == verdict.host and past.evidence
        )
        if verdict.status == "unknown" and last_quarantine.automatic:
            return None
        event = NodeEvent(
            event="passed",
            host=verdict.host,
            when=format_time(now),
            who=AUTOMATIC_AUTHOR,
            automatic=True,
            reason="a fresh probe was not slow" if verdict.status == "ok" else "a fresh probe ended well",
        )
        append_record(folder / EVENTS, event)
    return event


def quarantined_nodes(folder: Path) -> dict[str, Evidence]:
    """Return the nodes in quarantine, each with the evidence of its last quarantine. Raises RecordError.

    A node is in quarantine if its last event has evidence, because only a quarantine has evidence.
    """
    return {host: event.evidence for host, event in read_last_events(folder).items() if event.evidence is not None}


def nodes_on_trial(folder: Path) -> dict[str, NodeEvent]:
    """Return the nodes on trial, each with the event of its release. They must pass a probe before they are used."""
    return {host: event for host, event in read_last_events(folder).items() if event.event == "released"}


def read_events(folder: Path) -> list[NodeEvent]:
    """Return all events of all nodes, oldest first. Raises RecordError."""
    return read_records(folder / EVENTS, NodeEvent)


def node_state(event: NodeEvent | None) -> NodeState:
    """Return the state of a node whose last event is ``event``; None means that it had no event."""
    if event is None or event.event == "passed":
        return "in service"
    return "quarantined" if event.event == "quarantined" else "on trial"


def read_last_events(folder: Path) -> dict[str, NodeEvent]:
    """Return the last event of each node, by host name."""
    return {event.host: event for event in read_events(folder)}


def _write_mark(folder: Path, host: str, evidence: Evidence) -> None:
    write_text(folder / MARKS / host, printable(f"{evidence.when} {evidence.who}: {evidence.reason}") + "\n")


def _warn_of_repetition(earlier_events: list[NodeEvent], event: NodeEvent) -> list[str]:
    """Return a warning if regbot already quarantined the node in the last REPEAT_DAYS days, and it was released since.

    ``event`` is the new quarantine, and ``earlier_events`` has the older events of the node. A quarantine by an
    operator gives no warning.
    """
    if not event.automatic:
        return []
    period_start = parse_time(event.when) - timedelta(days=REPEAT_DAYS)
    quarantines = [
        past
        for past in earlier_events
        if past.event == "quarantined" and past.automatic and parse_time(past.when) >= period_start
    ]
    if not quarantines:
        return []
    releases = [past for past in earlier_events if past.event == "released" and past.when >= quarantines[0].when]
    if not releases:
        return []
    last_release = releases[-1]
    text = (
        f"{event.host} IS BACK IN QUARANTINE: {len(quarantines) + 1} quarantines within {REPEAT_DAYS} days, with "
        f"this one. It was released on {last_release.when} by {last_release.who} ({last_release.reason}), and is slow "
        f"again. Do not release it before its hardware has been inspected; "
        f"'regbot node show {event.host}' lists the evidence of each time"
    )
    return [clip_message(text)]
