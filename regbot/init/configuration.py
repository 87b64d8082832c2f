"""Write the first ``regbot.toml`` of a repository from the detected facts. Comments in it say what is missing."""

import json
from collections.abc import Sequence

from regbot.config import FILE_NAME, MEGATRON_PROGRAM, PLACEHOLDER_ENTRY, Config
from regbot.init.detection import RepositoryFacts
from regbot.init.framework import MEGATRON_SUBMODULE, Stack

_HEAD = """\
# What regbot traces and times here, and how it judges. All keys: docs/configuration.md of regbot.
# A pull request is judged by the version of this file on its base branch.{docs}
version = 1
"""

_SHADOW = """\
[github]
shadow = true  # blocks nothing, but shows the verdict; remove this line when you trust it
"""

_NO_SHADOW = """\
# [github]
# shadow = true  # blocks nothing, but shows the verdict: for the first two weeks
"""

_SLURM = """\
# A check with --engine slurm requests its nodes from Slurm (docs/slurm.md).
# [slurm]
# partition = "gpu"
"""


def configuration(facts: RepositoryFacts, shadow: bool, docs: str = "") -> str:
    """Return the text of a valid ``regbot.toml``. With ``shadow``, it sets shadow mode, in which checks block nothing.

    ``docs`` is the address of regbot's documentation; '' if unknown."""
    parts = [_HEAD.format(docs=f"\n# docs/... is at {docs}" if docs else ""), _workload(facts)]
    if facts.slurm:
        parts.append(_SLURM)
    parts.append(_SHADOW if shadow else _NO_SHADOW)
    return "\n".join(parts)


def placeholder_warnings(config: Config, text: str) -> list[str]:
    """Return a warning for each workload that still has the placeholder of ``regbot init`` as its ``entry``.

    ``text`` is the text of the configuration. If as many lines as workloads have the placeholder, the warnings give the
    numbers of these lines. Otherwise lines cannot be matched with workloads, and the warnings name only the file."""
    names = [name for name, workload in config.workloads.items() if workload.entry == PLACEHOLDER_ENTRY]
    line_numbers = [number for number, line in enumerate(text.splitlines(), 1) if f'"{PLACEHOLDER_ENTRY}"' in line]
    if len(line_numbers) == len(names):
        locations = [f"{FILE_NAME}:{number}" for number in line_numbers]
    else:
        locations = [FILE_NAME] * len(names)
    return [
        f"{location}: the workload {name} still has the placeholder {PLACEHOLDER_ENTRY}, and every check is INVALID. "
        "Write build_layer for your MoE layer (docs/module.md) and name it there"
        for location, name in zip(locations, names, strict=True)
    ]


def _workload(facts: RepositoryFacts) -> str:
    """Return the table of the workload: the detected layer, or else the framework, or else a placeholder to fill in."""
    if facts.entry is not None:
        other_lines = [f"# also found: {other.text} in {other.file}" for other in facts.other_entries[:3]]
        return _module(facts.entry.text, facts.entry.root, remark=f"found in {facts.entry.file}", comments=other_lines)
    if facts.stack is not None:
        write_table = _FRAMEWORK_TABLES[facts.stack.traced]
        return write_table(facts.stack)
    comments = [
        "# No build_layer(config, mesh, device, dtype) was found. Write one that returns your MoE layer, and name",
        "# it here (docs/module.md). Until then every check is INVALID.",
        *(f"# It could return {class_name} of {file}." for file, class_name in facts.classes[:3]),
    ]
    return _module(PLACEHOLDER_ENTRY, root=".", remark="", comments=comments)


def _module(entry: str, root: str, remark: str, comments: Sequence[str]) -> str:
    """Return the table of a workload with the adapter ``module``.

    ``root`` is the source root, "." for the root of the repository. ``remark`` is a comment beside the entry, ''
    without one. ``comments`` are lines above the table."""
    lines = [
        *comments,
        "[workloads.moe]",
        'adapter = "module"',
        f"entry = {_text(entry)}{f'  # {remark}' if remark else ''}",
        *([f"source_roots = [{_text(root)}]"] if root != "." else []),
        'shapes = ["qwen3-30b-a3b", "mixtral-8x7b"]  # full size on two meshes each, unless variant or meshes is set',
    ]
    return "\n".join(lines) + "\n"


def _torchtitan(stack: Stack) -> str:
    """Return the table of a workload with the adapter ``torchtitan``. ``stack`` is the detected framework."""
    return f"""\
# {_evidence_comment(stack)}; docs/frameworks/torchtitan.md says what is run and counted.
[workloads.titan]
adapter = "torchtitan"
{_root(stack)}shapes = ["qwen3-30b-a3b"]  # its numbers are pinned, so that base and head are the same model
# python = ".venv/bin/python"  # an interpreter with torchtitan's dependencies; default: regbot's own interpreter

# A recipe of the repository, with its own sizes: many regressions are in recipes.
# [workloads.shipped]
# adapter = "torchtitan"
# shapes = ["qwen3-30b-a3b"]
# label = "shipped"
# recipe = "qwen3_30b_a3b"
"""


def _megatron(stack: Stack) -> str:
    """Return the table of a workload with the adapter ``megatron``. ``stack`` is the detected framework."""
    # Only a repository with Megatron's source can prove that a run used this source.
    watch = 'watch = ["megatron"]  # a run proves that it comes from the checkout\n' if stack.own else ""
    # The script of Megatron Bridge needs a recipe, so it is not used here.
    script = stack.program if stack.framework == "megatron" else ""
    return f"""\
# {_evidence_comment(stack)}; docs/frameworks/megatron.md says what is run and counted.
{"" if script else _NO_SCRIPT}[workloads.megatron]
adapter = "megatron"
program = {_text(script or MEGATRON_PROGRAM)}  # the script itself, unmodified
{_root(stack)}{watch}shapes = ["mixtral-8x7b", "qwen3-30b-a3b"]
dispatcher = "alltoall"  # Megatron's own default is allgather
timed = []  # time real training with the workload below
# python = ".venv/bin/python"  # an interpreter with Megatron's dependencies; default: regbot's own interpreter
{_COMMAND}"""


_NO_SCRIPT = """\
# No script that calls megatron.training.pretrain was found. Name yours in 'program'; until then every check is INVALID.
# A training loop without it is not traced: write a layer for adapter = "module" (docs/module.md).
"""


def _bridge(stack: Stack) -> str:
    """Return the table of a workload that runs a recipe of Megatron Bridge. ``stack`` is the detected framework."""
    return f"""\
# {_evidence_comment(stack)}; docs/frameworks/megatron.md says what is run and counted.
[workloads.bridge]
adapter = "megatron"
program = {_text(stack.program)}  # the script itself, unmodified
recipe = {_text(stack.recipe)}  # keeps its own numbers
source_roots = [{_text(stack.root)}, {_text(MEGATRON_SUBMODULE)}]
shapes = ["qwen3-30b-a3b"]
meshes = ["ep"]  # 16 ranks, EP 16; a recipe for another EP needs a mesh of its own
timed = []  # time real training with the workload below
# python = ".venv/bin/python"  # an interpreter with Bridge's dependencies; default: regbot's own interpreter
{_COMMAND}"""


def _maxtext(stack: Stack) -> str:
    """Return the table of a workload with the adapter ``maxtext``. ``stack`` is the detected framework."""
    return f"""\
# {_evidence_comment(stack)}; docs/frameworks/maxtext.md says what is compiled and counted.
[workloads.maxtext]
adapter = "maxtext"
{_root(stack)}shapes = ["mixtral-8x7b"]
timed = []  # a compiled program has no step time; time real training with the workload below
# python = ".venv/bin/python"  # Python 3.12 with jax and MaxText's dependencies
{_COMMAND}"""


_COMMAND = """
# Any program that logs its steps (docs/frameworks.md). regbot replaces {steps} by the number of steps.
# [workloads.train]
# adapter = "command"
# command = ["torchrun", "--nproc-per-node", "8", "pretrain.py", "--train-iters", "{steps}"]
# shapes = ["mixtral-8x7b"]
"""

_FRAMEWORK_TABLES = {
    "torchtitan": _torchtitan,
    "megatron": _megatron,
    "megatron-bridge": _bridge,
    "maxtext": _maxtext,
}


def _evidence_comment(stack: Stack) -> str:
    """Return a sentence with the evidence for the framework, and a warning if the repository lacks its source."""
    if stack.own:
        return f"Found: {stack.evidence}"
    return f"Found: {stack.evidence}. regbot traces the installed package, not code of this repository"


def _root(stack: Stack) -> str:
    """Return the line with the source root; '' if this is the root of the repository, which is the default."""
    return f"source_roots = [{_text(stack.root)}]\n" if stack.root != "." else ""


def _text(value: str) -> str:
    """Return ``value`` as a TOML string. It has no unprintable characters, because such names are left out earlier."""
    return json.dumps(value, ensure_ascii=False)
