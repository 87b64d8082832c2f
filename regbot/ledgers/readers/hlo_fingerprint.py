"""The fingerprint of an HLO program: equal for two texts that are one program under other names.

Left out: names of instructions, computations, parameters and the module, metadata (``op_name``, source file and line),
tables of source locations, comments, channel numbers. Everything else counts: operations and their order, shapes and
layouts, operands, groups, backend configuration. So a renamed function or a moved line changes nothing, and where a
compiler writes something of the source into the program itself (the body of a Pallas kernel has source lines), equal
programs can look different, which costs a measurement and never hides a change.
"""

import hashlib
import re
from collections.abc import Mapping

from regbot.ledgers.readers.hlo_text import COMMENT

_STRING = r'"(?:[^"\\\n]++|\\.){0,1000}+"'
_NOISE = re.compile(r', metadata=\{(?:[^{}"\n]++|' + _STRING + r"|\{[^{}\n]*+\})*+\}|, channel_id=[0-9]+")
"""Bounded, so that a hostile line costs no more than its length a thousand times."""
_DEFINED = re.compile(r"%([\w.\-]++) = ", re.ASCII)
_NAME = re.compile(r"%([\w.\-]++)", re.ASCII)
_MODULE_NAME = re.compile(r"HloModule [^\s,]+")
_MODULE_NOISE = re.compile(r'fingerprint_before_lhs="[^"]*",?')


class ProgramFingerprint:
    """Fed computation by computation, callees first."""

    def __init__(self, header: str) -> None:
        module = _MODULE_NOISE.sub("", _MODULE_NAME.sub("HloModule", header))
        self._all = hashlib.sha256(COMMENT.sub("", module).encode())
        self._names: dict[str, str] = {}

    def add(self, name: str, entry: bool, text: str) -> None:
        """One computation. Calls stand for the text of what they call, other names for the place they were defined."""
        if "/*" in text:
            text = COMMENT.sub("", text)
        text = _NOISE.sub("", text)
        defined = _DEFINED.findall(text)
        words = _Words(self._names)
        words.update(zip(defined, map("%{}".format, range(len(defined))), strict=True))
        parts = _NAME.split(text)
        parts[1::2] = map(words.__getitem__, parts[1::2])
        digest = hashlib.sha256("".join(parts).encode("utf-8", "replace")).hexdigest()
        self._names[name] = "%" + digest[:32]
        self._all.update(b"ENTRY " if entry else b"      ")
        self._all.update(digest.encode())

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._all.hexdigest()


class _Words(dict[str, str]):
    """What stands for each name of a computation; names that it does not define are those of other computations."""

    def __init__(self, computations: Mapping[str, str]) -> None:
        self._computations = computations

    def __missing__(self, word: str) -> str:
        return self._computations.get(word, "%?")
