"""Fingerprint of an HLO program. Texts that differ only in names, metadata (``op_name``, source lines), comments and
channel numbers have equal fingerprints. Everything else counts: operations and their order, shapes and layouts,
operands, groups, backend configuration. If a compiler writes source lines into the program itself, as in a Pallas
kernel, equal programs can differ. Regbot then measures needlessly, but never misses a change."""

import hashlib
import re

from regbot.ledgers.readers.hlo.text import COMMENT

_STRING = r'"(?:[^"\\\n,]++|\\[^\n,]|,(?! metadata=\{))*+"'
_NOISE = re.compile(r', metadata=\{(?:[^{}"\n]++|' + _STRING + r"|\{[^{}\n]*+\})*+\}|, channel_id=[0-9]+")
"""Text to remove: metadata and channel numbers. A string in metadata must not contain the beginning of metadata.
Otherwise a hostile line could be searched to its end from each such beginning."""
_DEFINED = re.compile(r"%([\w.\-]++) = ", re.ASCII)
_NAME = re.compile(r"%([\w.\-]++)", re.ASCII)
_MODULE_NAME = re.compile(r"HloModule [^\s,]+")
_MODULE_NOISE = re.compile(r'fingerprint_before_lhs="[^"]*",?')


class ProgramFingerprint:
    """Hash of a program. Computations are added one by one, each called computation before its callers."""

    def __init__(self, header: str) -> None:
        module = _MODULE_NOISE.sub("", _MODULE_NAME.sub("HloModule", header))
        self._hash = hashlib.sha256(COMMENT.sub("", module).encode())
        self._names: dict[str, str] = {}
        """Replacement of the name of each earlier computation: a percent sign and a part of its digest."""

    def add(self, name: str, is_entry: bool, text: str) -> None:
        """Add one computation to the hash. ``text`` is its HLO, and ``is_entry`` says whether the program starts with
        it. In the text, the name of a called computation is replaced by its digest. A name that the text defines is
        replaced by its position among these names, and an unknown name by ``%?``."""
        if "/*" in text:
            text = COMMENT.sub("", text)
        text = _NOISE.sub("", text)
        defined = {name: f"%{position}" for position, name in enumerate(_DEFINED.findall(text))}
        parts = _NAME.split(text)  # every second part is a name
        parts[1::2] = [defined.get(name) or self._names.get(name, "%?") for name in parts[1::2]]
        digest = hashlib.sha256("".join(parts).encode("utf-8", "replace")).hexdigest()
        self._names[name] = "%" + digest[:32]  # 128 bits are enough to tell computations apart
        self._hash.update(b"ENTRY " if is_entry else b"      ")
        self._hash.update(digest.encode())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
