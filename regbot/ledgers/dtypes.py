"""Widths of element types by the names that torch, XLA and the profilers give them."""

import re

_WORDS = {
    "half": 2,
    "float": 4,
    "double": 8,
    "char": 1,
    "byte": 1,
    "short": 2,
    "int": 4,
    "long": 8,
    "bool": 1,
    "pred": 1,
}
_BITS = re.compile(r"^[a-z]+(\d+)")


def width(dtype: str) -> int | None:
    """Bytes per element: 2 for 'bfloat16', 'bf16' and 'Half', 1 for 'float8_e4m3fn'; None where the name does not tell
    (tensors of mixed types) or elements are smaller than a byte."""
    name = dtype.lower().removeprefix("torch.").removeprefix("c10::")
    if name in _WORDS:
        return _WORDS[name]
    found = _BITS.match(name)
    if not found or int(found[1]) % 8 or not 8 <= int(found[1]) <= 128:
        return None
    return int(found[1]) // 8
