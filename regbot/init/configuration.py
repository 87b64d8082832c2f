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
shadow = true  # blocks nothing, but shows the verdict; remove this line when you trust it (docs/shadow.md)
"""

_NO_SHADOW = """\
# [github]
# shadow = true  # blocks nothing, but shows the verdict: for the first two weeks (docs/shadow.md)
"""

_SLURM = """\
# A check with --engine slurm requests its nodes from Slurm (docs/slurm.md).
# [slurm]
# partition = "gpu"
"""


def configuration(facts: RepositoryFacts, shadow: bool, docs: str = "") -> str:
    """Return the text of a valid ``regbot.toml``. ``docs`` is the address of regbot's documentation; '' if unknown."""
    parts = [_HEAD.format(docs=f"\n# docs/... is at {docs}" if docs else ""), _workload(facts)]
    if facts.slurm:
        parts.append(_SLURM)
    parts.append(_SHADOW if shadow else _NO_SHADOW)
    return "\n".join(parts)


def placeholder_warnings(config: Config, text: str) -> list[str]:
    """Return a warning for each workload that still has the placeholder which ``regbot init`` has written. ``text`` is
    the text of the configuration, for the line numbers."""
    names = [name for name, workload in config.workloads.items() if workload.entry == PLACEHOLDER_ENTRY]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if f'"{PLACEHOLDER_ENTRY}"' in line]
    places = [f"{FILE_NAME}:{number}" for number in lines] if len(lines) == len(names) else [FILE_NAME] * len(names)
    return [
        f"{place}: the workload {name} still has the placeholder {PLACEHOLDER_ENTRY}, and every check is INVALID. "
        "Write build_layer for your MoE layer (docs/module.md) and name it there"
        for place, name in zip(places, names, strict=True)
    ]


def _workload(facts: RepositoryFacts) -> str:
    if facts.entry is not None:
        others = [f"# also found: {other.text} in {other.file}" for other in facts.other_entries[:3]]
        return _module(facts.entry.text, facts.entry.root, f"found in {facts.entry.file}", others)
    if facts.stack is not None:
        return _STACKS[facts.stack.traced](facts.stack)
    comments = [
        "# No build_layer(config, mesh, device, dtype) was found. Write one that returns your MoE layer, and name",
        "# it here (docs/module.md). Until then every check is INVALID.",
        *(f"# It could return {title} of {file}." for file, title in facts.classes[:3]),
    ]
    return _module(PLACEHOLDER_ENTRY, ".", "", comments)


def _module(entry: str, root: str, remark: str, comments: Sequence[str]) -> str:
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
    watch = 'watch = ["megatron"]  # a run proves that it comes from the checkout\n' if stack.own else ""
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

_STACKS = {
    "torchtitan": _torchtitan,
    "megatron": _megatron,
    "megatron-bridge": _bridge,
    "maxtext": _maxtext,
}


def _evidence_comment(stack: Stack) -> str:
    if stack.own:
        return f"Found: {stack.evidence}"
    return f"Found: {stack.evidence}. regbot traces the installed package, not code of this repository"


def _root(stack: Stack) -> str:
    return f"source_roots = [{_text(stack.root)}]\n" if stack.root != "." else ""


def _text(value: str) -> str:
    """Return ``value`` as a TOML string. It has no unprintable characters, because such names are left out earlier."""
    return json.dumps(value, ensure_ascii=False)
