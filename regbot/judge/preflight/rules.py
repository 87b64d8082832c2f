"""Find conflicts in a configuration by rules (``rules.toml``), and advice on dispatchers (``advice.toml``), without
running anything.

A rule says what a framework does with a combination of settings, according to the framework's source code on a given
date. It does not know what a run will do: a configuration without conflicts can still execute another dispatcher than
the requested one, and only the ledger or the record of a run shows which. Advice has a date too and is never a verdict.
It says which dispatcher was fastest on a vendor's cluster, and has the command that compares dispatchers here.

A rule is "invalid" if the run would not measure what was requested, else a "warning". ``base`` and ``head`` of an
advice are the overrides of both arms of the comparison to run; they are missing if there is nothing to compare.
"""

import shlex
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import tomllib

from regbot.judge.preflight.conditions import evaluate
from regbot.judge.preflight.facts import Facts
from regbot.records.ledger import Scalar
from regbot.records.preflight import Preflight, PreflightAdvice, PreflightConflict
from regbot.records.text.clip import clip, clip_message
from regbot.records.text.printable import printable
from regbot.records.text.words import count
from regbot.records.text.wrap import wrapped

WIDTH = 100
"""Number of characters in a line of the page if the output is not a terminal."""
EFFECTS = {
    "error": "fails at start",
    "silent fallback": "silently runs something else",
    "hang": "hangs",
    "slow": "is slower than necessary",
    "wrong": "measures something else",
}
"""What happens if the configuration is run, by the effect in a rule."""

VALUE_CHARACTERS = 200
"""Largest length of a value that makes a rule apply."""


def find_conflicts(config: Mapping[str, Scalar], facts: Facts) -> list[PreflightConflict]:
    """Return the rules that apply to a resolved configuration. Rules that make a run invalid come first."""
    conflicts = []
    for rule in shipped("rule"):
        applies, because = evaluate(rule["when"], config, facts)
        if applies:
            texts = [(clip(printable(str(part)), VALUE_CHARACTERS) for part in cause) for cause in because.items()]
            fields = {name: value for name, value in rule.items() if name not in ("id", "when")}
            values = clip_message(", ".join(map(" = ".join, texts)))
            conflicts.append(PreflightConflict.model_validate({"rule": rule["id"], "here": values, **fields}))
    return sorted(conflicts, key=lambda conflict: conflict.severity != "invalid")


def find_advice(facts: Facts, config: Mapping[str, Scalar], workload: str = "W") -> list[PreflightAdvice]:
    """Return the advice for this hardware and configuration, each with the ``regbot check`` command that compares two
    dispatchers on the same commit. ``workload`` stands in the commands."""
    advice = []
    for entry in shipped("advice"):
        applies, _ = evaluate(entry["when"], config, facts)
        if applies:
            words = ["regbot", "check", "--base", "HEAD", "--head", "HEAD"]
            for arm in ("base", "head"):
                for key, value in entry.get(arm, {}).items():
                    words += [f"--{arm}-set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
            command = shlex.join([*words, "--workload", workload]) if "head" in entry else ""
            command = clip_message(printable(command))
            advice.append(
                PreflightAdvice(advice=entry["id"], text=entry["text"], source=entry["source"], command=command)
            )
    return advice


@cache
def shipped(kind: str) -> list[dict[str, Any]]:
    """Return the entries of ``rules.toml`` ("rule") or ``advice.toml`` ("advice")."""
    name = "rules.toml" if kind == "rule" else "advice.toml"
    text = (resources.files("regbot.judge.preflight") / name).read_text(encoding="utf-8")
    entries: list[dict[str, Any]] = tomllib.loads(text)[kind]
    return entries


def preflight_page(result: Preflight) -> str:
    """Return the terminal page."""
    invalid_count = sum(conflict.severity == "invalid" for conflict in result.conflicts)
    warning_count = len(result.conflicts) - invalid_count
    lines = [f"{count(invalid_count, 'conflict')}, {count(warning_count, 'warning')}"]
    if not result.conflicts:
        lines.append("no rule applies to this configuration; only a trace or a run shows which dispatcher runs")
    if result.unknown:
        lines.append(result.unknown)
    for conflict in result.conflicts:
        severity = "INVALID" if conflict.severity == "invalid" else "WARNING"
        lines += ["", f"{severity}  {conflict.rule}: {EFFECTS[conflict.effect]}"]
        values, fix, source = f"values: {conflict.values}", f"fix: {conflict.fix}", f"source: {conflict.source}"
        lines += [wrapped(text, piped=WIDTH) for text in (conflict.description, values, fix, source)]
    if result.advice:
        lines += ["", "What to try, and the command that compares it on this hardware (advice, not a verdict):"]
    for entry in result.advice:
        lines += ["", wrapped(f"{entry.text} ({entry.source})", piped=WIDTH)]
        lines += [f"    {entry.command}"] if entry.command else []
    return "\n".join(lines) + "\n"
