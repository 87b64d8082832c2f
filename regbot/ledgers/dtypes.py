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
"""The number of bits in a name such as ``bfloat16`` or ``s32``."""


def width(dtype: str) -> int | None:
    """Return bytes per element: 2 for 'bfloat16', 'bf16' and 'Half', 1 for 'float8_e4m3fn'.

    Return None if the width is unknown (for example, for 'mixed') or not a whole number of bytes.
    """
    name = dtype.lower().removeprefix("torch.").removeprefix("c10::")
    if name in _BYTES_BY_NAME:
        return _BYTES_BY_NAME[name]
    bits_match = _BITS.match(name)
    bits = int(bits_match[1]) if bits_match else 0  # 0: the name has no number
    if bits % 8 != 0 or not 8 <= bits <= 128:
        return None
    return bits // 8
