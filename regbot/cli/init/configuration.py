"""Write the first ``regbot.toml`` of a repository. Comments in it ask what was not found."""

import json

from regbot.cli.init.detection import Framework, Layer
from regbot.records.config import MEGATRON_PROGRAM, PLACEHOLDER_ENTRY

MEGATRON_SUBMODULE = "3rdparty/Megatron-LM"
"""Folder of Megatron-core's sources in a repository of Megatron Bridge."""

_TEMPLATE = """\
# What regbot traces and times here, and how it judges. All keys: docs/configuration.md of regbot.
# A pull request is judged by the version of this file on its base branch.
version = 1

{workload}
# Any program that logs its steps is timed on a node (docs/frameworks.md). {{steps}} becomes the number of steps.
# [workloads.train]
# adapter = "command"
# command = ["torchrun", "--nproc-per-node", "8", "pretrain.py", "--train-iters", "{{steps}}"]
# shapes = ["mixtral-8x7b"]

# Does a check with --engine slurm need a partition of its own (docs/operator.md)?
# [slurm]
# partition = "gpu"

# Shall it block nothing until you trust it?
# [github]
# shadow = true
"""


def configuration(layer: Layer | None, framework: Framework | None) -> str:
    """Return the text of a valid ``regbot.toml`` with one workload: the layer, or the framework, or a placeholder."""
    if layer is not None or framework is None:
        workload = _module(layer)
    else:
        workload = (
            f"# Found: {framework.evidence}. How it is run: docs/frameworks.md\n{_TABLES[framework.name](framework)}"
        )
    return _TEMPLATE.format(workload=workload)


def _module(layer: Layer | None) -> str:
    comment = (
        f"# Found in {layer.file}."
        if layer is not None
        else "# No build_layer(config, mesh, device, dtype) was found. Write one that returns your MoE layer, name\n"
        "# it here (docs/module.md). Until then every check is INVALID."
    )
    entry, root = (layer.entry, layer.root) if layer is not None else (PLACEHOLDER_ENTRY, ".")
    return f"""\
{comment}
[workloads.moe]
adapter = "module"
entry = {json.dumps(entry, ensure_ascii=False)}
{_source_roots(root)}shapes = ["qwen3-30b-a3b", "mixtral-8x7b"]  # at full size, on two meshes each
"""


def _torchtitan(framework: Framework) -> str:
    return f"""\
[workloads.titan]
adapter = "torchtitan"
{_source_roots(framework.root)}shapes = ["qwen3-30b-a3b"]  # its numbers are pinned: the same model in base and head
{_PYTHON}
# Many regressions are in recipes: does the repository ship one, with its own sizes?
# [workloads.shipped]
# adapter = "torchtitan"
# shapes = ["qwen3-30b-a3b"]
# label = "shipped"
# recipe = "qwen3_30b_a3b"
"""


def _megatron(framework: Framework) -> str:
    # Only a repository with Megatron's source can prove that a run used this source.
    watch = 'watch = ["megatron"]  # a run proves that it comes from the checkout\n' if framework.is_own else ""
    question = (
        ""
        if framework.program
        else "# Which script calls megatron.training.pretrain? Until 'program' names it, every check is INVALID.\n"
    )
    return f"""\
{question}[workloads.megatron]
adapter = "megatron"
program = {json.dumps(framework.program or MEGATRON_PROGRAM, ensure_ascii=False)}  # the script itself, unmodified
{_source_roots(framework.root)}{watch}shapes = ["mixtral-8x7b", "qwen3-30b-a3b"]
dispatcher = "alltoall"  # Megatron's own default is allgather
timed = []  # time real training with a workload of the adapter command
{_PYTHON}"""


def _bridge(framework: Framework) -> str:
    return f"""\
[workloads.bridge]
adapter = "megatron"
program = {json.dumps(framework.program)}  # the script itself, unmodified
recipe = {json.dumps(framework.recipe)}  # keeps its own numbers
source_roots = [{json.dumps(framework.root, ensure_ascii=False)}, {json.dumps(MEGATRON_SUBMODULE)}]
shapes = ["qwen3-30b-a3b"]
meshes = ["ep"]  # 16 ranks, EP 16; a recipe for another EP needs a mesh of its own
timed = []  # time real training with a workload of the adapter command
{_PYTHON}"""


def _maxtext(framework: Framework) -> str:
    return f"""\
[workloads.maxtext]
adapter = "maxtext"
{_source_roots(framework.root)}shapes = ["mixtral-8x7b"]
timed = []  # a compiled program has no step time; time real training with a workload of the adapter command
{_PYTHON}"""


_TABLES = {"torchtitan": _torchtitan, "megatron": _megatron, "megatron-bridge": _bridge, "maxtext": _maxtext}

_PYTHON = """\
# Which interpreter has the framework's dependencies? Default: the one that runs regbot.
# python = ".venv/bin/python"
"""


def _source_roots(root: str) -> str:
    """Return the line with the source root; '' if this is the root of the repository, which is the default."""
    return f"source_roots = [{json.dumps(root, ensure_ascii=False)}]\n" if root != "." else ""
