"""What to do after ``regbot init``: few steps, in order, with the exact command where there is one."""

import shlex
from collections.abc import Mapping

from regbot.init.detection import Findings
from regbot.init.framework import TITLES, Framework
from regbot.init.runners import DEFAULT, Runner
from regbot.init.source import EXAMPLE
from regbot.records.base import Record
from regbot.text import printable

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
MOST_PACKAGES = 4


class Step(Record):
    """One thing to do; ``command`` is '' where no command does it."""

    text: str
    command: str = ""


def first_steps(found: Findings, runner: Runner | None, shadow: bool) -> list[Step]:
    """After the first installation. ``runner`` None: nothing was installed that runs on nodes; DEFAULT: it is not known
    whether there are any."""
    steps = _workload(found)
    steps.append(Step(text="See that it can be traced", command=f"regbot ledger trace {_traced(found)}"))
    if packages := _missing(found):
        text = (
            'regbot-static.yml installs torch and numpy. Add what else your code imports behind "numpy" there '
            f"({packages}); an upgrade keeps it"
        )
        steps.append(Step(text=text))
    steps.append(
        Step(
            text=f"Bring it to {printable(found.branch.name)}: from there on each pull request gets its comment",
            command='git add regbot.toml .github/workflows && git commit -m "Let regbot judge pull requests"',
        )
    )
    if runner is not None:
        engine = "; the repository's variable REGBOT_ENGINE = slurm sends it to the cluster" if found.slurm else ""
        text = (
            f"For step times, set up a runner with the labels {runner} (docs/operator.md, docs/security.md). "
            f"A maintainer then has a pull request timed by the comment '/regbot run'{engine}"
        )
        steps.append(Step(text=text))
    if runner == DEFAULT:
        text = "No node yet? Then leave out what would wait for one; 'regbot init --with-nodes' brings it back"
        steps.append(Step(text=text, command="regbot init --only-static"))
    if not shadow:
        text = "For the first two weeks let it block nothing: 'shadow = true' below [github] in regbot.toml"
        steps.append(Step(text=text))
    return steps


def source_step() -> Step:
    """Where nobody has said what the workflows are to install."""
    text = (
        "Say where the workflows are to install regbot from; until then they fail. The bare name is somebody else's "
        "package. Put in your copy's address and the 40 digits of a commit, or give a path in this repository"
    )
    return Step(text=text, command=f"regbot init --upgrade --source '{EXAMPLE}'")


def owner_step(path: str) -> Step:
    """Where regbot is installed from a path in the repository: who may change that changes what judges."""
    text = (
        f"Give {path} an owner in .github/CODEOWNERS: the workflows install regbot from there, and it runs with tokens "
        "that write (docs/security.md). A measurement of a pull request that changes it needs 'with-protected-files'"
    )
    return Step(text=text)


def enterprise_step(host: str) -> Step:
    """Where origin is at a host that may be a GitHub Enterprise Server."""
    text = (
        f"Is {host} a GitHub Enterprise Server? It takes no newer artifact actions than v3, so say it "
        "(docs/github.md); '--no-enterprise-server' says that it is none"
    )
    return Step(text=text, command="regbot init --upgrade --enterprise-server")


def waiting_steps(outdated: bool, edited: bool, source: str | None) -> list[Step]:
    """Where newer files were shown and not written."""
    again = f" --source {shlex.quote(source)}" if source else ""
    steps = []
    if outdated:
        text = "Write what is newer; workflows that were edited stay"
        steps.append(Step(text=text, command=f"regbot init --upgrade{again}"))
    if edited:
        text = "Take over by hand what you want of the others, or lose what was edited there"
        steps.append(Step(text=text, command=f"regbot init --force{again}"))
    return steps


def _workload(found: Findings) -> list[Step]:
    if found.entry is not None:
        return []
    if found.stack is None:
        text = "Write build_layer for your MoE layer (docs/module.md) and name it in regbot.toml"
        return [Step(text=text)]
    page = f"docs/frameworks/{_PAGES[found.stack.framework]}.md"
    text = (
        f"Install what {TITLES[found.stack.framework]} imports beside regbot, or set 'python' in regbot.toml to an "
        f"interpreter that has it ({page})"
    )
    return [Step(text=text)]


def _traced(found: Findings) -> str:
    if found.entry is None and found.stack is not None:
        return WORKLOADS[found.stack.framework]
    return "moe:mixtral-8x7b"


def _missing(found: Findings) -> str:
    """Packages that the hosted job would lack; '' where it installs the repository's own list."""
    if found.installs_requirements:
        return ""
    named = found.packages[:MOST_PACKAGES]
    return ", ".join(named) + (", ..." if len(found.packages) > len(named) else "")
