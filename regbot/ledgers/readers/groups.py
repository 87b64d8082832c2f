"""Labels of process groups, from the description of a group or from its ranks."""

import re
from collections.abc import Sequence
from itertools import pairwise

from regbot.records.text.clip import clip

UNKNOWN = "unknown"
"""Axis of a collective whose group the file does not contain."""
MAX_RANKS = 65536
_NO_DESCRIPTION = {"", "undefined", "default_pg", "none"}
_MEGATRON_AXES = {
    "data_parallel": "dp",
    "data_parallel_group_with_cp": "dp_cp",
    "tensor_model_parallel": "tp",
    "pipeline_model_parallel": "pp",
    "context_parallel": "cp",
    "expert_model_parallel": "ep",
    "expert_tensor_parallel": "etp",
    "expert_data_parallel": "edp",
    "expert": "ep",
    "expert_parallel": "ep",
}


def parse_axis(description: str) -> str:
    """Return the axis that a group's description names, or '' if there is no description. For example, ``mesh_ep`` and
    ``EXPERT_MODEL_PARALLEL_GROUP`` give 'ep'. Descriptions that are not known are returned in lower case."""
    name = description.strip().lower()
    if name in _NO_DESCRIPTION:
        return ""
    short_name = name.removeprefix("mesh_")
    megatron_axis = _MEGATRON_AXES.get(short_name) or _MEGATRON_AXES.get(short_name.removesuffix("_group"))
    return megatron_axis or clip(short_name, 200)


def format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as the guest does: ``[0-3]``, ``[0-8:4]`` with a stride, others as a list. A list of more than 400
    characters is shortened to the number of ranks, the first rank and the last rank."""
    strides = {following - previous for previous, following in pairwise(ranks)}
    if len(ranks) > 2 and len(strides) == 1:
        stride = strides.pop()
        return f"[{ranks[0]}-{ranks[-1]}" + (f":{stride}]" if stride != 1 else "]")
    text = ",".join(map(str, ranks))
    return f"[{text}]" if len(text) <= 400 else f"[{len(ranks)} ranks from {ranks[0]} to {ranks[-1]}]"


def parse_ranks(value: object) -> tuple[int, ...]:
    """Parse ranks from a list or from text such as '[0, 1, 2]'. Return () if the text is shortened or invalid."""
    if isinstance(value, str):
        if len(value) > 2**20 or not re.fullmatch(r"\[[0-9,\s]*\]", value):
            return ()
        value = [int(word) for word in re.findall(r"[0-9]{1,9}", value)]
    if not isinstance(value, list) or len(value) > MAX_RANKS:
        return ()
    is_valid = all(isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < 2**53 for rank in value)
    return tuple(value) if is_valid else ()
