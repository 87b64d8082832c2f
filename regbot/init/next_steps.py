"""The steps that a user has to take after ``regbot init``, in order, with commands."""

import shlex
from collections.abc import Mapping

from regbot.init.detection import RepositoryFacts
from regbot.init.framework import TITLES, Framework
from regbot.init.runners import DEFAULT, Runner
from regbot.init.source import EXAMPLE
from regbot.records.base import Record
from regbot.text.printable import printable

WORKLOADS: Mapping[Framework, str] = {
    "torchtitan": "titan:qwen3-30b-a3b",
    "megatron": "megatron:mixtral-8x7b",
    "megatron-bridge": "bridge:qwen3-30b-a3b",
    "maxtext": "maxtext:mixtral-8x7b",
}
_PAGES: Mapping[Framework, str] = {
    "torchtitan": "torchtitan",
    "megatron": "megatron",
    "megatron-bridge": "megatron",
    "maxtext": "maxtext",
}
MAX_PACKAGES = 4
"""Maximum number of packages that a step names."""


class SetupStep(Record):
    """One step that the user has to take. ``command`` is '' if the step has no command."""

    text: str
    command: str = ""


def first_steps(facts: RepositoryFacts, runner: Runner | None, shadow: bool) -> list[SetupStep]:
    """Return the steps to take after the first installation.

    ``runner`` is the runner for timed runs. It is None if no workflow for nodes was installed. It is DEFAULT if no
    runner was found; the repository may then have no nodes. ``shadow`` says whether the new configuration sets shadow
    mode.
    """
    steps = _workload_steps(facts)
    steps.append(
        SetupStep(text="Check that it can be traced", command=f"regbot ledger trace {_workload_to_trace(facts)}")
    )
    if packages := _missing_packages(facts):
        text = (
            'regbot-static.yml installs torch and numpy. Add the other packages that your code imports after "numpy" '
            f"there ({packages}); an upgrade keeps them"
        )
        steps.append(SetupStep(text=text))
    steps.append(
        SetupStep(
            text=f"Merge the files into {printable(facts.branch.name)}; from then on each pull request gets a comment",
            command='git add regbot.toml .github/workflows && git commit -m "Let regbot judge pull requests"',
        )
    )
    steps.append(
        SetupStep(
            text="Before you require the check 'regbot', register a GitHub App and let it create the check run "
            "(docs/security.md, step 6). A job of a pull request can create a check run of that name, but not in the "
            "name of your App"
        )
    )
    if runner is not None:
        engine_hint = "; the repository variable REGBOT_ENGINE = slurm runs it on the cluster" if facts.slurm else ""
        text = (
            f"For step times, set up a runner with the labels {runner} (docs/operator.md, docs/security.md). "
            f"Then the comment '/regbot run' of a maintainer times a pull request{engine_hint}"
        )
        steps.append(SetupStep(text=text))
    if runner == DEFAULT:
        text = "No node yet? Then remove the workflows that need one; 'regbot init --with-nodes' installs them again"
        steps.append(SetupStep(text=text, command="regbot init --only-static"))
    if not shadow:
        text = "For the first two weeks, let it block nothing: set 'shadow = true' below [github] in regbot.toml"
        steps.append(SetupStep(text=text))
    return steps


def source_step() -> SetupStep:
    """Return the step for workflows that do not know yet where to install regbot from."""
    text = (
        "Set the source from which the workflows install regbot; until then they fail. The bare name regbot is "
        "somebody else's package. Give the address of your copy with the 40 digits of a commit, or a path in this "
        "repository"
    )
    return SetupStep(text=text, command=f"regbot init --upgrade --source '{EXAMPLE}'")


def owner_step(path: str) -> SetupStep:
    """Return the step for workflows that install regbot from ``path``, which has no owner in CODEOWNERS."""
    text = (
        f"Give {path} an owner in .github/CODEOWNERS: the workflows install regbot from there, and it runs with tokens "
        "that write (docs/security.md). A measurement of a pull request that changes it needs 'with-protected-files'"
    )
    return SetupStep(text=text)


def enterprise_step(host: str) -> SetupStep:
    """Return the step for a repository whose remote origin may be on a GitHub Enterprise Server."""
    text = (
        f"Is {host} a GitHub Enterprise Server? It needs artifact actions v3 or older (docs/github.md), so run this "
        "command; if it is not one, give '--no-enterprise-server' instead"
    )
    return SetupStep(text=text, command="regbot init --upgrade --enterprise-server")


def waiting_steps(outdated: bool, edited: bool, source: str | None) -> list[SetupStep]:
    """Return the steps for files that have a newer version which was shown, but not written.

    ``outdated`` says whether there are such files that nobody edited, and ``edited`` whether there are edited ones.
    ``source`` is the value of ``--source``.
    """
    source_option = f" --source {shlex.quote(source)}" if source else ""
    steps = []
    if outdated:
        text = "Write the newer workflows; edited ones are kept"
        steps.append(SetupStep(text=text, command=f"regbot init --upgrade{source_option}"))
    if edited:
        text = "Copy the changes that you want into the edited workflows by hand, or replace these and lose the edits"
        steps.append(SetupStep(text=text, command=f"regbot init --force{source_option}"))
    return steps


def _workload_steps(facts: RepositoryFacts) -> list[SetupStep]:
    """Return the step that makes a trace possible; [] if a ``build_layer`` was found.

    Otherwise the user writes this function, or installs the packages of the framework that was found."""
    if facts.entry is not None:
        return []
    if facts.stack is None:
        text = "Write build_layer for your MoE layer (docs/module.md) and name it in regbot.toml"
        return [SetupStep(text=text)]
    docs_page = f"docs/frameworks/{_PAGES[facts.stack.framework]}.md"
    text = (
        f"Install the dependencies of {TITLES[facts.stack.framework]} next to regbot, or set 'python' in regbot.toml "
        f"to an interpreter that has them ({docs_page})"
    )
    needs = facts.needs
    # Without known needs, no command can be given.
    if needs is None or not facts.needed_packages:
        return [SetupStep(text=text)]
    packages = [*([needs.torch] if needs.torch else []), *facts.needed_packages]
    text += f". They were traced with Python {needs.python}. The job on the hosted runner installs them itself"
    return [SetupStep(text=text, command=f"pip install {shlex.join(packages)}")]


def _workload_to_trace(facts: RepositoryFacts) -> str:
    """Return a workload of the new ``regbot.toml`` with one of its shapes, as ``NAME:SHAPE``."""
    if facts.entry is None and facts.stack is not None:
        return WORKLOADS[facts.stack.traced]
    return "moe:mixtral-8x7b"


def _missing_packages(facts: RepositoryFacts) -> str:
    """Return as text the first packages that the hosted job does not install.

    '' if the hosted job installs what the framework needs.
    """
    if facts.hosted_packages:
        return ""
    ellipsis = ", ..." if len(facts.packages) > MAX_PACKAGES else ""
    return ", ".join(facts.packages[:MAX_PACKAGES]) + ellipsis
