"""The text of an HLO module, computation by computation, and the shapes in it.

A module is its header line, tables of source locations (skipped), and computations, callees first, ``ENTRY`` last.
Only one computation is held at a time. What a line means is not decided here.

Syntax: XLA's HLO printer as of jax 0.10 to 0.12 (``HloModule::ToString`` with percent signs), and the forms before it
that dumps in the field still have. A text without a complete ``ENTRY`` was cut off and raises ReadError.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.readers.source import Source

MAX_COMPUTATION_CHARS = 256 * 2**20
"""Most that one computation may hold: it is the unit that stays in memory."""
MAX_BYTES = 2**53
"""Most bytes of one tensor, so that every sum stays exact in JSON."""

_MODULE = re.compile(r"HloModule [^\s,]")
_STABLEHLO = re.compile(r"module (?:@|\{|attributes)")
_HEADER_NUMBER = re.compile(r"[0-9]{1,9}")
_COMPUTATION = re.compile(r"^(ENTRY +)?(%?)([\w.\-]+) *(?:\([^\n]*)?\{[ \r]*$", re.ASCII | re.MULTILINE)
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([\w.\-]+) = ", re.ASCII)
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*+)"')
_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+"?|[(\[{][^()\[\]{}"]*+[)\]}]|([(\[{])|([)\]}])|, ([\w\-]+)=', re.ASCII | re.DOTALL
)
"""Strings and brackets without others inside, whole; other brackets; the beginnings of attributes."""
_OPERANDS = re.compile(r"\(([^()]*)\)")
COMMENT = re.compile(r"/\*[^*]*\*/")
_SHAPE = re.compile(r"[()]|(?<![a-z0-9])([a-z][a-z0-9]*)\[([^\]\[]*)\](?:\{[^{}]*\})?")
_BITS = re.compile(r"[a-z]+([0-9]{1,3})")
_DIMENSION = re.compile(r"(?:<=)?([0-9]{1,16})")


OPENS, CLOSES, ATTRIBUTE = 1, 2, 3
"""Groups of ``_TOKEN``."""


class Header(NamedTuple):
    """The first line of a module. ``num_partitions`` x ``replica_count`` devices run it."""

    text: str
    num_partitions: int
    replica_count: int
    scheduled: bool


@dataclass(frozen=True, slots=True)
class Body:
    """One computation: its name, its header line and its text, a line for each instruction (large constants have
    more). ``marked``: names begin with a percent sign, as they do in dumps."""

    name: str
    entry: bool
    marked: bool
    header: str
    text: str

    def lines_at(self, positions: Iterable[int]) -> Iterator[str]:
        """The lines around ascending positions of the text, each once."""
        end = -1
        for position in positions:
            if position > end:
                start = self.text.rfind("\n", 0, position) + 1
                end = self.text.find("\n", position)
                end = end if end >= 0 else len(self.text)
                yield self.text[start:end]

    def instructions(self) -> Iterator["Instruction"]:
        return (line for line in map(instruction, self.text.split("\n")) if line is not None)


@dataclass(frozen=True)
class Instruction:
    """One line, cut at its opcode. ``rest`` begins with the parenthesis of the operands."""

    name: str
    shape: str
    opcode: str
    rest: str
    root: bool

    @cached_property
    def attributes(self) -> dict[str, str]:
        """What is said behind the operands, by name; see ``attributes``."""
        return attributes(self.rest)

    @property
    def op_name(self) -> str:
        found = _OP_NAME.search(self.attributes.get("metadata", ""))
        return found[1] if found else ""

    @property
    def operands(self) -> list[str]:
        """Names of the operands; none where their shapes are printed too, as older versions did."""
        found = _OPERANDS.match(COMMENT.sub("", self.rest)) if "/*" in self.rest else _OPERANDS.match(self.rest)
        return [word.strip().lstrip("%") for word in found[1].split(",") if word.strip()] if found else []


def attributes(text: str) -> dict[str, str]:
    """``, name=value`` at the top level of a line, values as printed; the first of a name counts.

    The one place where attributes are found. Programs put words of their own into strings and braces (``op_name``,
    frontend attributes), so nothing inside of these is an attribute, whatever it looks like.
    """
    found: dict[str, str] = {}
    name, start, depth = "", 0, 0
    for token in _TOKEN.finditer(text):
        what = token.lastindex
        if what == ATTRIBUTE and depth == 0:
            found.setdefault(name, text[start : token.start()].strip())
            name, start = token[ATTRIBUTE], token.end()
        elif what == OPENS:
            depth += 1
        elif what == CLOSES:
            depth = max(0, depth - 1)
    found.setdefault(name, text[start:].strip())
    del found[""]
    return found


def instruction(text: str) -> Instruction | None:
    """One line of a computation; None where it is none (the inside of a printed constant)."""
    head = _INSTRUCTION.match(text)
    cut = _OPCODE.search(text, head.end() - 1) if head else None
    if head is None or cut is None:
        return None
    return Instruction(head[2], text[head.end() : cut.start()], cut[1], text[cut.end() - 1 :], head[1] is not None)


class Leaf(NamedTuple):
    """One tensor of a shape."""

    dtype: str
    bytes: int


class BadShape(Exception):
    """A shape that cannot be sized. The message says why."""


def module(source: Source) -> tuple[Header, Iterator[Body]]:
    """The header of the module in ``source`` and an iterator over its computations. Raises ReadError, both do."""
    pieces = _pieces(source)
    first, whole = next(pieces)
    for line in first.split("\n"):
        if _MODULE.match(line.lstrip()):
            return _header(line.strip()), _bodies(source, first, whole, pieces)
        if _STABLEHLO.match(line.lstrip()):
            raise source.error(
                "is StableHLO, from before XLA partitioned the program; give the *after_optimizations.txt of the dump"
            )
    raise source.error("has no HloModule line; give the *after_optimizations.txt of an XLA dump")


def _header(line: str) -> Header:
    given = attributes(line)

    def number(name: str) -> int:
        return max(1, int(value)) if _HEADER_NUMBER.fullmatch(value := given.get(name, "")) else 1

    return Header(
        text=line,
        num_partitions=number("num_partitions"),
        replica_count=number("replica_count"),
        scheduled=given.get("is_scheduled") == "true",
    )


def _bodies(source: Source, piece: str, whole: bool, pieces: Iterator[tuple[str, bool]]) -> Iterator[Body]:
    """The computations: each stands at the end of a piece, behind its header line."""
    modules = entries = 0
    while True:
        found = _COMPUTATION.search(piece)
        between = piece[: found.start() if found else None]
        modules += sum(bool(_MODULE.match(line)) for line in between.split("\n")) if "HloModule" in between else 0
        if modules > 1:
            raise source.error("holds more than one HloModule; give the train step's alone")
        if found is None and whole:
            raise source.error("is broken: a brace closes that none opened; dump or copy it again")
        if found is not None and not whole:
            raise source.error(f"ends in the middle of the computation {found[3][:100]}; dump or copy it again")
        if found is None:
            break
        entries += found[1] is not None
        yield Body(found[3], found[1] is not None, found[2] == "%", found[0], piece[found.end() + 1 :])
        piece, whole = next(pieces)
    if entries != 1:
        what = f"has {entries} ENTRY computations" if entries else "has no ENTRY computation, so it was cut off"
        raise source.error(f"{what}; dump or copy it again")


def _pieces(source: Source) -> Iterator[tuple[str, bool]]:
    """The text cut at every brace that begins a line, which is what ends a computation. The last piece is not whole."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    begun: list[str] = []
    held, newline = 0, ""
    for chunk in source.chunks():
        text = newline + decoder.decode(chunk)
        newline = "\n" if text.endswith("\n") else ""
        first, *more = text[: len(text) - len(newline)].split("\n}")
        begun.append(first)
        held += len(first)
        if held > MAX_COMPUTATION_CHARS:
            raise source.error(f"holds a computation of more than {MAX_COMPUTATION_CHARS:,} characters")
        if more:
            yield "".join(begun), True
            begun, held = [more.pop()], 0
            yield from ((piece, True) for piece in more)
    yield "".join(begun), False


def tensors(shape: str) -> list[Leaf]:
    """All tensors of ``shape``, tuples flattened: ``(f32[8]{0}, bf16[2,4])`` -> 32 and 16 bytes. Raises BadShape."""
    return [leaf for element in elements(shape) for leaf in element]


def elements(shape: str) -> list[list[Leaf]]:
    """The tensors of each top-level element of a tuple, of the one element of an array. Raises BadShape."""
    found: list[list[Leaf]] = []
    depth = 0
    for token in _SHAPE.finditer(shape):
        if token[0] == "(":
            depth += 1
            if depth == 2:
                found.append([])
        elif token[0] == ")":
            depth -= 1
        else:
            leaf = _leaf(token[1], token[2])
            if depth < 2 or not found:
                found.append([])
            if leaf is not None:
                found[-1].append(leaf)
    return found


def _leaf(dtype: str, dimensions: str) -> Leaf | None:
    """None for tokens and opaque handles, which hold no data. Bounded dimensions (``<=128``) count at their bound."""
    if dtype in ("token", "opaque"):
        return None
    bits = 8 if dtype == "pred" else int(found[1]) if (found := _BITS.match(dtype)) else 0
    if not bits:
        raise BadShape(f"the element type {dtype[:40]} is not known")
    count = 1
    for text in dimensions.replace(" ", "").split(",") if dimensions else ():
        dimension = _DIMENSION.fullmatch(text)
        if dimension is None:
            raise BadShape(f"the dimension {text[:40]!r} has no size")
        count *= int(dimension[1])
        if count * bits > 8 * MAX_BYTES:
            raise BadShape(f"{dtype}[{dimensions[:80]}] is larger than any memory")
    return Leaf(dtype, (count * bits + 7) // 8)
