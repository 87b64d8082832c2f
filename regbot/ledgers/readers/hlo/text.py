"""Parser of HLO module text: header, computations, instructions, attributes, shapes. It does not interpret opcodes.

A module is a header line, tables of source locations, and computations, each before its callers, ``ENTRY``
last. Only one computation is in memory. The syntax is that of ``HloModule::ToString`` in jax 0.10 to 0.12, and older
syntax that still occurs in dumps. A text without a complete ``ENTRY`` was cut off and raises ReadError."""

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from regbot.ledgers.readers.source import Source
from regbot.records.text.clip import clip

MAX_COMPUTATION_CHARS = 256 * 2**20
"""Largest number of characters in one computation. One computation is kept in memory at a time."""
MAX_BYTES = 2**53
"""Largest size of one tensor in bytes. Up to this limit, integers are exact in JSON."""

_MODULE = re.compile(r"HloModule [^\s,]")
_STABLEHLO = re.compile(r"module (?:@|\{|attributes)")
_HEADER_NUMBER = re.compile(r"[0-9]{1,9}")
_COMPUTATION = re.compile(r"^(ENTRY +)?(%?)([\w.\-]+) *(?:\([^\n]*)?\{[ \r]*$", re.ASCII | re.MULTILINE)
"""Header line of a computation. The groups are 'ENTRY ', the percent sign, and the name."""
_INSTRUCTION = re.compile(r"\s+(ROOT\s+)?%?([\w.\-]+) = ", re.ASCII)
"""Start of an instruction. The groups are 'ROOT ' and the name."""
_OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*+)"')
_TOKEN = re.compile(
    r'"(?:[^"\\]++|\\.)*+"?|[(\[{][^()\[\]{}"]*+[)\]}]|([(\[{])|([)\]}])|, ([\w\-]+)=', re.ASCII | re.DOTALL
)
"""Matches four things: a string as a whole, an innermost pair of brackets as a whole, any other bracket, and the start
of an attribute."""
_BRACE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([{}])|\n', re.DOTALL)
"""A string as a whole, a brace (group 1), or a line end."""
_BROKEN_ATTRIBUTE = re.compile(r'\n(?:\S|[ \t]*+")|=\{[ \r]*\n')
"""A line that continues an attribute, or whose last brace opens one."""
_OPERANDS = re.compile(r"\(([^()]*)\)")
COMMENT = re.compile(r"/\*[^*]*\*/")
_SHAPE = re.compile(r"[()]|(?<![a-z0-9])([a-z][a-z0-9]*)\[([^\]\[]*)\](?:\{[^{}]*\})?")
"""A parenthesis of a tuple, or an array such as ``f32[8,4]{1,0}`` with element type, dimensions and layout."""
_BITS = re.compile(r"[a-z]+([0-9]{1,3})")
_DIMENSION = re.compile(r"(?:<=)?([0-9]{1,16})")


OPENING, CLOSING, ATTRIBUTE = 1, 2, 3
"""Numbers of the regex groups in ``_TOKEN``."""


class Header(NamedTuple):
    """The first line of a module. The module runs on ``num_partitions`` x ``replica_count`` devices."""

    text: str
    tables: str
    """The lines between it and the first computation."""
    num_partitions: int
    replica_count: int
    is_scheduled: bool
    """Whether XLA has run all its passes, of which scheduling is the last."""


@dataclass(frozen=True, slots=True)
class ComputationText:
    name: str
    is_entry: bool
    has_percent_names: bool
    """Whether names begin with a percent sign, as in dumps."""
    header: str
    text: str
    """The lines after the header line: one per instruction, or more for a large constant."""

    def lines_at(self, positions: Iterable[int]) -> Iterator[str]:
        """Yield the lines that contain the given positions, each line once. The positions must be in ascending
        order.
        """
        end = -1  # of the last line that was yielded
        for position in positions:
            if position > end:
                start = self.text.rfind("\n", 0, position) + 1
                end = self.text.find("\n", position)
                if end < 0:
                    end = len(self.text)
                yield self.text[start:end]

    def instructions(self) -> Iterator["Instruction"]:
        parsed_lines = map(parse_instruction, self.text.split("\n"))
        return (instruction for instruction in parsed_lines if instruction is not None)


@dataclass(frozen=True)
class Instruction:
    name: str
    shape: str
    opcode: str
    rest: str
    """The text after the opcode. It begins with the opening parenthesis of the operands."""
    is_root: bool
    """Whether the computation returns the result of this instruction."""

    @cached_property
    def attributes(self) -> dict[str, str]:
        return parse_attributes(self.rest)

    @property
    def op_name(self) -> str:
        match = _OP_NAME.search(self.attributes.get("metadata", ""))
        return match[1] if match else ""

    @cached_property
    def operands(self) -> list[str]:
        """Names of the operands. Older versions of XLA also print the shapes of the operands. The items are then not
        valid names."""
        text = COMMENT.sub("", self.rest) if "/*" in self.rest else self.rest
        match = _OPERANDS.match(text)
        if match is None:
            return []
        return [operand.strip().lstrip("%") for operand in match[1].split(",") if operand.strip()]


def parse_attributes(text: str) -> dict[str, str]:
    """Return the attributes ``, name=value`` at the top level of a line, with their values as printed. If a name occurs
    twice, its first value is used. Text inside strings and braces is never taken as an attribute, because programs can
    put any text there (``op_name``, frontend attributes)."""
    attributes: dict[str, str] = {}
    name, start, depth = "", 0, 0  # the text before the first attribute has the name ''
    for token in _TOKEN.finditer(text):
        token_kind = token.lastindex
        if token_kind == ATTRIBUTE and depth == 0:
            attributes.setdefault(name, text[start : token.start()].strip())
            name, start = token[ATTRIBUTE], token.end()
        elif token_kind == OPENING:
            depth += 1
        elif token_kind == CLOSING:
            depth = max(0, depth - 1)
    attributes.setdefault(name, text[start:].strip())
    del attributes[""]
    return attributes


def parse_instruction(text: str) -> Instruction | None:
    """Parse one line of a computation. Return None if the line is not an instruction but a part of a printed
    constant.
    """
    start_match = _INSTRUCTION.match(text)
    opcode_match = _OPCODE.search(text, start_match.end() - 1) if start_match else None
    if start_match is None or opcode_match is None:
        return None
    root_mark, name = start_match.groups()
    return Instruction(
        name=name,
        shape=text[start_match.end() : opcode_match.start()],
        opcode=opcode_match[1],
        rest=text[opcode_match.end() - 1 :],
        is_root=root_mark is not None,
    )


class Tensor(NamedTuple):
    dtype: str
    bytes: int


class BrokenProgram(Exception):
    """The text contradicts itself, or has a syntax that is not known. The message describes the fault."""


def read_module(source: Source) -> tuple[Header, Iterator[ComputationText]]:
    """Return the header of the module and an iterator over its computations. Both this function and the iterator raise
    ReadError."""
    pieces = _split_pieces(source)
    first_piece, is_complete = next(pieces)  # ``is_complete``: a closing brace ends the piece
    for line in first_piece.split("\n"):
        if _MODULE.match(line.lstrip()):
            start = _COMPUTATION.search(first_piece)
            tables = first_piece[: start.start()] if start is not None else ""
            return _parse_header(line.strip(), tables), _read_computations(source, first_piece, is_complete, pieces)
        if _STABLEHLO.match(line.lstrip()):
            raise source.error(
                "is StableHLO, from before XLA partitioned the program; give the *after_optimizations.txt of the dump"
            )
    raise source.error("has no HloModule line; give the *after_optimizations.txt of an XLA dump")


def _parse_header(line: str, tables: str) -> Header:
    header_attributes = parse_attributes(line)

    def parse_number(name: str) -> int:
        value = header_attributes.get(name, "")
        return max(1, int(value)) if _HEADER_NUMBER.fullmatch(value) else 1

    return Header(
        text=line,
        tables=tables,
        num_partitions=parse_number("num_partitions"),
        replica_count=parse_number("replica_count"),
        is_scheduled=header_attributes.get("is_scheduled") == "true",
    )


def _read_computations(
    source: Source, piece: str, is_complete: bool, pieces: Iterator[tuple[str, bool]]
) -> Iterator[ComputationText]:
    """Yield the computations. Each piece of text ends with one computation, which begins with its header line.
    ``piece`` is the first piece, and ``pieces`` are the others. ``is_complete`` says whether a closing brace ends the
    first piece. The last piece is the text after the last computation, so it must not contain a header line."""
    module_count = entry_count = 0
    while True:
        header = _COMPUTATION.search(piece)
        preamble = piece[: header.start()] if header else piece
        if "HloModule" in preamble:
            module_count += sum(_MODULE.match(line) is not None for line in preamble.split("\n"))
        if module_count > 1:
            raise source.error("contains more than one HloModule; give only the module of the train step")
        if header is None and is_complete:
            raise source.error("is broken: it has a closing brace without an opening one; dump or copy it again")
        if header is None:
            break
        entry_mark, percent_sign, name = header.groups()
        if not is_complete:
            raise source.error(f"ends in the middle of the computation {clip(name, 100)}; dump or copy it again")
        entry_count += entry_mark is not None
        yield ComputationText(
            name=name,
            is_entry=entry_mark is not None,
            has_percent_names=percent_sign == "%",
            header=header[0],
            text=_join_attributes(piece[header.end() + 1 :]),
        )
        piece, is_complete = next(pieces)
    if entry_count != 1:
        problem = f"has {entry_count} ENTRY" if entry_count else "ends in the middle: it has no ENTRY"
        raise source.error(f"{problem} computation{'s' * (entry_count > 1)}; dump or copy it again")


def _join_attributes(text: str) -> str:
    """Return the text of a computation with every attribute on one line."""
    if not _BROKEN_ATTRIBUTE.search(text):
        return text
    depth, start, parts = 0, 0, []
    for token in _BRACE.finditer(text):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if token[0] == "\n" and depth > 0:
            parts.append(text[start : token.start()])
            start = token.end()
    return " ".join([*parts, text[start:]])


@dataclass
class _Piece:
    """Text since the end of the last computation. ``depth`` is the number of its open braces, with those in strings,
    and ``exact_depth`` without, as far as the text is not in ``unread``."""

    fragments: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    size: int = 0
    depth: int = 0
    exact_depth: int = 0

    def add(self, text: str) -> None:
        self.fragments.append(text)
        self.unread.append(text)
        self.size += len(text)
        self.depth += text.count("{") - text.count("}")

    def is_inside_attribute(self) -> bool:
        """Whether a closing brace after this text ends an attribute, and not the computation."""
        if self.depth == 1:  # strings rarely contain single braces
            return False
        braces = Counter(brace for brace in _BRACE.findall("".join(self.unread)) if brace)
        self.exact_depth += braces["{"] - braces["}"]
        self.unread.clear()
        return self.exact_depth > 1


def _split_pieces(source: Source) -> Iterator[tuple[str, bool]]:
    """Split the text at every closing brace that begins a line and ends a computation. A brace that ends an attribute
    of several lines is no such brace. Yield each piece with a flag that says whether it is complete. All pieces are
    complete except the last."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    piece, newline = _Piece(), ""
    for chunk in source.chunks():
        text = newline + decoder.decode(chunk)
        newline = "\n" if text.endswith("\n") else ""  # a brace may follow in the next chunk, so the newline is kept
        first, *rest = text[: len(text) - len(newline)].split("\n}")
        piece.add(first)
        for part in rest:
            if piece.is_inside_attribute():
                piece.add("\n}")
            else:
                yield "".join(piece.fragments), True
                piece = _Piece()
            piece.add(part)
        if piece.size > MAX_COMPUTATION_CHARS:
            raise source.error(f"contains a computation of more than {MAX_COMPUTATION_CHARS:,} characters")
    yield "".join(piece.fragments), False


def parse_tensors(shape: str) -> list[Tensor]:
    """Return all tensors of ``shape``. For example, ``(f32[8]{0}, bf16[2,4])`` has tensors of 32 and 16 bytes. Raises
    BrokenProgram."""
    return [tensor for element in parse_elements(shape) for tensor in element]


def parse_elements(shape: str) -> list[list[Tensor]]:
    """Return the tensors of each top-level element of a tuple. An array counts as one element. Raises BrokenProgram.
    For example, ``((f32[8], f32[4]), f32[2])`` has two elements: one with two tensors and one with one tensor."""
    elements: list[list[Tensor]] = []
    depth = 0
    for token in _SHAPE.finditer(shape):
        if token[0] == "(":
            depth += 1
            if depth == 2:  # a tuple inside the outer tuple is one element
                elements.append([])
        elif token[0] == ")":
            depth -= 1
        else:
            tensor = _parse_tensor(token[1], token[2])
            if depth < 2 or not elements:
                elements.append([])
            if tensor is not None:  # tokens and opaque handles have no data
                elements[-1].append(tensor)
    return elements


def _parse_tensor(dtype: str, dimensions: str) -> Tensor | None:
    """Return the tensor, or None for tokens and opaque handles, which have no data. Raises BrokenProgram. A bounded
    dimension such as ``<=128`` counts with its bound."""
    if dtype in ("token", "opaque"):
        return None
    bits_match = _BITS.match("u8" if dtype == "pred" else dtype)
    bits = int(bits_match[1]) if bits_match else 0
    if not bits:
        raise BrokenProgram(f"the element type {clip(dtype, 40)} is not known")
    count = 1
    sizes = dimensions.replace(" ", "").split(",") if dimensions else []
    for text in sizes:
        dimension = _DIMENSION.fullmatch(text)
        if dimension is None:
            raise BrokenProgram(f"the dimension {clip(text, 40)!r} has no size")
        count *= int(dimension[1])
        if count * bits > 8 * MAX_BYTES:
            raise BrokenProgram(f"{dtype}[{clip(dimensions, 80)}] is larger than any memory")
    return Tensor(dtype, bytes=(count * bits + 7) // 8)  # rounded up, because a type can have 4 bits
