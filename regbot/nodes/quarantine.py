"""Quarantine: nodes that are taken out of service with evidence, released with a reason, and then on trial.

The log ``events.jsonl`` is the truth: every quarantine, release and passed trial, appended and never changed. A file
per quarantined node in ``quarantined/`` says the same to a prolog, which is a shell script; it is there before the log
says so and goes after, so that a crash in between refuses a node too many and never one too few.
"""

from datetime import datetime, timedelta
from pathlib import Path

from regbot.nodes.errors import NodeError
from regbot.nodes.history import append_to, known, read_all, writing
from regbot.records.baseline import moment, utc
from regbot.records.files import write_text
from regbot.records.node import Evidence, NodeEvent, NodeVerdict, State
from regbot.text import printable

EVENTS = "events.jsonl"
MARKS = "quarantined"
WHO = "regbot"
"""Of what regbot decides by itself."""
AGAIN_DAYS = 7
"""A node that regbot quarantines twice within these was released too early, or has a fault that comes and goes."""


def quarantine(folder: Path, host: str, evidence: Evidence) -> list[str]:
    """Take ``host`` out of service. On the disk when this returns. Returns warnings.

    Evidence against a node that is in quarantine already is added to the log. Raises NodeError, OSError.
    """
    if known(host) != evidence.host:
        raise NodeError(f"the evidence is about {evidence.host}, not about {host}")
    with writing(folder):
        earlier = [each for each in events(folder) if each.host == host]
        _mark(folder, host, evidence)
        event = NodeEvent(
            event="quarantined",
            host=host,
            when=evidence.when,
            who=evidence.who,
            automatic=evidence.automatic,
            reason=evidence.reason,
            evidence=evidence,
        )
        append_to(folder / EVENTS, event)
    return _again(earlier, event)


def release(folder: Path, host: str, who: str, why: str, now: datetime) -> NodeEvent:
    """Put ``host`` back into service, on trial. Raises NodeError where it is not in quarantine, or ``why`` is empty."""
    if not why.strip():
        raise NodeError("a release says why: what was repaired, or what was looked at")
    with writing(folder):
        found = quarantined(folder)
        if known(host) not in found:
            listed = ", ".join(sorted(found)[:8]) or "none"
            raise NodeError(f"{host} is not in quarantine; these are: {listed}")
        event = NodeEvent(
            event="released", host=host, when=utc(now), who=printable(who), automatic=False, reason=printable(why)
        )
        append_to(folder / EVENTS, event)
        (folder / MARKS / host).unlink(missing_ok=True)
    return event


def settle_trial(folder: Path, verdict: NodeVerdict, now: datetime) -> NodeEvent | None:
    """End the trial of a node whose fresh probe was not slow. None where it is on none, or was not shown to be well.

    A node of which nothing can be said yet stays on trial only if it was regbot that quarantined it: what an operator
    took out and put back was never a matter of speed.
    """
    with writing(folder):
        released = on_trial(folder).get(verdict.host)
        if released is None or verdict.status == "slow":
            return None
        last = next(each for each in reversed(events(folder)) if each.host == verdict.host and each.evidence)
        if verdict.status == "unknown" and last.automatic:
            return None
        event = NodeEvent(
            event="passed",
            host=verdict.host,
            when=utc(now),
            who=WHO,
            automatic=True,
            reason="a fresh probe was not slow" if verdict.status == "ok" else "a fresh probe ended well",
        )
        append_to(folder / EVENTS, event)
    return event


def quarantined(folder: Path) -> dict[str, Evidence]:
    """The nodes that are out of service, each with what it was last taken out for. Raises RecordError."""
    return {host: event.evidence for host, event in last_events(folder).items() if event.evidence is not None}


def on_trial(folder: Path) -> dict[str, NodeEvent]:
    """The nodes that were released and must pass a probe before anything is timed on them, with their release."""
    return {host: event for host, event in last_events(folder).items() if event.event == "released"}


def events(folder: Path) -> list[NodeEvent]:
    """Everything that ever happened, oldest first. Raises RecordError."""
    return read_all(folder / EVENTS, NodeEvent)


def state_of(event: NodeEvent | None) -> State:
    """After the last thing that happened to a node."""
    if event is None or event.event == "passed":
        return "in service"
    return "quarantined" if event.event == "quarantined" else "on trial"


def last_events(folder: Path) -> dict[str, NodeEvent]:
    """The last thing that happened to each node."""
    return {event.host: event for event in events(folder)}


def _mark(folder: Path, host: str, evidence: Evidence) -> None:
    write_text(folder / MARKS / host, printable(f"{evidence.when} {evidence.who}: {evidence.reason}") + "\n")


def _again(earlier: list[NodeEvent], event: NodeEvent) -> list[str]:
    """What is to be said loudly of a node that comes back."""
    if not event.automatic:
        return []
    since = moment(event.when) - timedelta(days=AGAIN_DAYS)
    before = [each for each in earlier if each.event == "quarantined" and each.automatic and moment(each.when) >= since]
    releases = [each for each in earlier if each.event == "released" and before and each.when >= before[0].when]
    if not releases:
        return []
    last = releases[-1]
    text = (
        f"{event.host} IS BACK IN QUARANTINE, {len(before) + 1} times within {AGAIN_DAYS} days: it was released on "
        f"{last.when} by {last.who} ({last.reason}), and is slow again. Do not release it before its hardware has been "
        f"looked at; 'regbot node show {event.host}' has the numbers of every time"
    )
    return [text[:4000]]
