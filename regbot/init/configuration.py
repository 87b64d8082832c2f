"""The first ``regbot.toml`` of a repository: short, with what was found in it and what is left to fill in."""

import json
from collections.abc import Sequence

from regbot.init.detection import Findings
from regbot.init.framework import Stack

PLACEHOLDER = "yourpackage.moe:build_layer"
"""Until it is replaced a check is INVALID and says that there is no such module: what measured nothing never passes."""

_HEAD = """\
# What regbot traces and times here, and how it judges. All keys: docs/configuration.md of regbot.
# A pull request is judged by this file as it is on the base branch.{docs}
version = 1
"""

_SHADOW = """\
[github]
shadow = true  # blocks nothing, says what it would have said; leave it out when you trust it (docs/shadow.md)
"""

_NO_SHADOW = """\
# [github]
# shadow = true  # blocks nothing, says what it would have said: for the first two weeks (docs/shadow.md)
"""

_SLURM = """\
# Nodes are asked of Slurm where the check runs with --engine slurm (docs/slurm.md).
# [slurm]
# partition = "gpu"
"""


def configuration(found: Findings, shadow: bool, docs: str = "") -> str:
    """The text of ``regbot.toml``. It is valid as it stands. ``docs``: where pages of regbot can be read, if known."""
    parts = [_HEAD.format(docs=f"\n# docs/... is at {docs}" if docs else ""), _workload(found)]
    if found.slurm:
        parts.append(_SLURM)
    parts.append(_SHADOW if shadow else _NO_SHADOW)
    return "\n".join(parts)


def _workload(found: Findings) -> str:
    if found.entry is not None:
        others = [f"# also found: {other.text} in {other.file}" for other in found.other_entries[:3]]
        return _module(found.entry.text, found.entry.root, f"found in {found.entry.file}", others)
    if found.stack is not None:
        return _STACKS[found.stack.framework](found.stack)
    missing = [
        "# No build_layer(config, mesh, device, dtype) was found. Write one that returns your MoE layer, name it",
        "# here (docs/module.md). Until then every check is INVALID.",
        *(f"# It could return {title} of {file}." for file, title in found.classes[:3]),
    ]
    return _module(PLACEHOLDER, ".", "", missing)


def _module(entry: str, root: str, why: str, comments: Sequence[str]) -> str:
    lines = [
        *comments,
        "[workloads.moe]",
        'adapter = "module"',
        f"entry = {_text(entry)}{f'  # {why}' if why else ''}",
        *([f"source_roots = [{_text(root)}]"] if root != "." else []),
        'shapes = ["qwen3-30b-a3b", "mixtral-8x7b"]  # full size on two meshes each, unless variant or meshes is set',
    ]
    return "\n".join(lines) + "\n"


def _torchtitan(stack: Stack) -> str:
    return f"""\
# {_says(stack)}; docs/frameworks/torchtitan.md says what is run and counted.
[workloads.titan]
adapter = "torchtitan"
{_root(stack)}shapes = ["qwen3-30b-a3b"]  # its numbers are pinned, so that base and head are the same model
# python = ".venv/bin/python"  # an interpreter with what torchtitan imports; without this, the one regbot runs under

# What the repository ships, with its own sizes: many regressions are in recipes.
# [workloads.shipped]
# adapter = "torchtitan"
# shapes = ["qwen3-30b-a3b"]
# label = "shipped"
# recipe = "qwen3_30b_a3b"
"""


def _megatron(stack: Stack) -> str:
    watch = 'watch = ["megatron"]  # the origin of its code is proven\n' if stack.own else ""
    return f"""\
# {_says(stack)}; docs/frameworks/megatron.md says what is run and counted.
[workloads.megatron]
adapter = "megatron"
{_root(stack)}{watch}shapes = ["mixtral-8x7b", "qwen3-30b-a3b"]
dispatcher = "alltoall"  # Megatron's own default is allgather
timed = []  # the layers traced here are not those that train; time real training with the workload below
# python = ".venv/bin/python"  # an interpreter with what Megatron imports; without this, the one regbot runs under
{_COMMAND}"""


def _bridge(stack: Stack) -> str:
    recipe = '# recipe = "package.module:function"  # it returns a ConfigContainer; else the numbers are pinned'
    if stack.recipe:
        recipe = f"recipe = {_text(stack.recipe)}  # returns a ConfigContainer"
    watch = 'watch = ["megatron.bridge"]  # the origin of its code is proven\n' if stack.own else ""
    return f"""\
# {_says(stack)}; docs/frameworks/megatron.md says what is run and counted. The interpreter needs Bridge and the
# Megatron-core that it is built on.
[workloads.bridge]
adapter = "megatron"
{_root(stack)}{watch}shapes = ["qwen3-30b-a3b"]
{recipe}
timed = []  # time real training with the workload below
# python = ".venv/bin/python"  # without this, the interpreter regbot runs under
{_COMMAND}"""


def _maxtext(stack: Stack) -> str:
    return f"""\
# {_says(stack)}; docs/frameworks/maxtext.md says what is compiled and counted.
[workloads.maxtext]
adapter = "maxtext"
{_root(stack)}shapes = ["mixtral-8x7b"]
timed = []  # a compiled program has no step time; time real training with the workload below
# python = ".venv/bin/python"  # Python 3.12 with jax and what MaxText imports
{_COMMAND}"""


_COMMAND = """
# Any program that logs its steps (docs/frameworks.md). {steps} is filled in.
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


def _says(stack: Stack) -> str:
    if stack.own:
        return f"Found: {stack.evidence}"
    return f"Found: {stack.evidence}. What is installed is traced, not code of this repository"


def _root(stack: Stack) -> str:
    return f"source_roots = [{_text(stack.root)}]\n" if stack.root != "." else ""


def _text(value: str) -> str:
    """``value`` as a TOML string. Names that cannot be printed were left out before."""
    return json.dumps(value, ensure_ascii=False)
