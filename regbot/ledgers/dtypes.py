"""Names and widths of element types."""

import re
from collections.abc import Collection

from regbot.records.text.clip import clip

_TORCH_NAMES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "long": "int64",
    "longint": "int64",
    "int": "int32",
    "short": "int16",
    "shortint": "int16",
    "byte": "uint8",
    "unsignedchar": "uint8",
    "char": "int8",
    "signedchar": "int8",
}
"""Names of torch's C++ code, in lower case and without spaces."""
_BITS = re.compile(r"^[a-z]+(\d+)")


def parse_torch_dtype(text: str) -> str:
    """Return torch's Python name of an element type: 'float32' for 'Float' and for 'c10::Float'."""
    name = text.removeprefix("c10::").lower().replace(" ", "")
    return clip(_TORCH_NAMES.get(name, name), 100)


def join_dtypes(dtypes: Collection[str]) -> str:
    """Return the one element type of several tensors: 'mixed' if they differ, 'none' without tensors."""
    return min(dtypes, default="none") if len({*dtypes}) < 2 else "mixed"


def width(dtype: str) -> int | None:
    """Return bytes per element: 2 for 'bfloat16' and 'bf16', 1 for 'float8_e4m3fn'. Return None if the width is unknown
    (for example, for 'mixed') or not a whole number of bytes."""
    if dtype in ("bool", "pred"):
        return 1
    bits_match = _BITS.match(dtype)
    bits = int(bits_match[1]) if bits_match else 0
    return bits // 8 if bits % 8 == 0 and 8 <= bits <= 128 else None
