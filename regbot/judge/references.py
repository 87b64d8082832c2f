"""Select the stored reference that a run may be compared with: of the same node class, environment and clock."""

from collections.abc import Sequence
from datetime import timedelta

from regbot.baselines.intake import environment_of, node_class_of
from regbot.judge.backends import DISPATCHER
from regbot.records.baseline import InvalidTime, parse_time
from regbot.records.reference import Reference
from regbot.records.run import Run
from regbot.records.session import SessionHeader, TimedPlan
from regbot.records.text.clip import clip
from regbot.records.text.words import count
from regbot.stats.prediction import MIN_NODES, SESSION_RUNS, session_level


def select_reference(plan: TimedPlan, run: Run) -> Reference | str:
    """Return the reference with the node class, environment and clock of ``run``, or the reason why there is no such
    reference."""
    node_class, environment = node_class_of(run), environment_of(run)
    same_class = [reference for reference in plan.references if reference.node_class == node_class]
    if not same_class:  # ``no_reference`` says why stored sessions are not comparable; '' if nothing is stored
        return plan.no_reference or f"no session of this workload is stored for the node class {node_class}"
    for reference in same_class:
        if reference.environment == environment and run.timing is not None and reference.clock == run.timing.clock:
            return reference
    # Explain the reference whose environment differs from that of ``run`` in the fewest fields.
    differences_of_references: list[list[str]] = [
        [
            f"{name} is {_format_value(stored)} in stored sessions, {_format_value(own)} here"
            for name, stored in reference.environment.model_dump().items()
            if stored != (own := getattr(environment, name))
        ]
        for reference in same_class
    ]
    nearest = min(differences_of_references, key=len)
    return f"stored sessions of this node class cannot be compared: {'; '.join(nearest) or 'they used another clock'}"


def stored_levels(reference: Reference, runs: int = SESSION_RUNS) -> dict[str, list[float]]:
    """Return the levels of the stored sessions on the log scale, by summary, over the first ``runs`` runs of each."""
    return {
        "median": [session_level(session.log_median, runs) for session in reference.sessions],
        "mean": [session_level(session.log_mean, runs) for session in reference.sessions],
    }


def find_age_days(measured: str, header: SessionHeader) -> float | None:
    """Return the days from ``measured`` to the start of this session, at least 0. None if a time is unreadable."""
    try:
        age = parse_time(header.created) - parse_time(measured)
    except InvalidTime:
        return None
    return max(0.0, age / timedelta(days=1))


def other_nodes(reference: Reference, run: Run) -> list[str]:
    """Return the node of each stored session if none is that of ``run``, else []. Sessions without a node count as
    those of one node, which is never that of ``run``."""
    nodes = [session.node or "" for session in reference.sessions]
    return [] if run.node is not None and run.node.name in nodes else nodes


def explain_unknown_node(reference: Reference, run: Run) -> str:
    """Return why stored sessions cannot be used for the node of ``run``, '' if they can: one is from this node, or they
    are from at least ``MIN_NODES`` nodes."""
    nodes = set(other_nodes(reference, run))
    if not nodes or len(nodes) >= MIN_NODES:
        return ""
    return f"stored sessions are of {count(len(nodes), 'other node')}, and at least {MIN_NODES} are needed"


def explain_other_dispatcher(reference: Reference, runs: Sequence[Run]) -> str:
    """Return a sentence if ``runs``, all of one arm, executed another dispatcher than the stored sessions, else ''."""
    executed = {run.backends[DISPATCHER].executed for run in runs if DISPATCHER in run.backends}
    if reference.executed is None or executed == {reference.executed}:
        return ""
    arm, arm_executed = runs[0].arm.name, ", ".join(sorted(executed)) or "an unknown one"
    return f"stored sessions executed the dispatcher {reference.executed!r}, and {arm} executed {arm_executed}"


def _format_value(value: object) -> str:
    return "unknown" if value is None else clip(repr(value), 80)
