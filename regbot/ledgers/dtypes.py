"""Widths of element types, by the names that torch, XLA and the profilers use."""

import re

_BYTES_BY_NAME = {
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
    """Return bytes per element: 2 for 'bfloat16', 'bf16' and 'Half', 1 for 'float8_e4m3fn'.

    Return None if the width is unknown (for example, for 'mixed') or not a whole number of bytes.
    """
    name = dtype.lower().removeprefix("torch.").removeprefix("c10::")
    if name in _BYTES_BY_NAME:
        return _BYTES_BY_NAME[name]
    bits = _BITS.match(name)
    if not bits or int(bits[1]) % 8 or not 8 <= int(bits[1]) <= 128:
        return None
    return int(bits[1]) // 8
