"""Hostile JSON for a fuzz: documents drawn from a record's JSON Schema, mostly valid, in which single parts are huge,
extreme or of another type.
"""

import json
import random
import re
from typing import Any

MARK = "§"
"""Part of a drawn text. ``repeated`` replaces it by a number, so that the copies of an item differ."""
TEXTS = ("", "ep", "a" * 40, "b" * 64, "a@1/a", "median", "layers.0.moe", f"n{MARK}", f"n-{MARK}.json", "x" * 500,
         "|`@a <b>\\n", "\\ud83d\\ude80", "\\u202e", "9" * 9)  # fmt: skip
"""Texts as they stand in JSON. Some match the patterns of records."""
NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "-1",
    "0.5",
    "1e-300",
    "1e300",
    "-1e308",
    "1e5",
    "9007199254740992",
    "9223372036854775808",
)
WRONG = (
    "null",
    "true",
    "[]",
    "{}",
    '""',
    "NaN",
    "1e999",
    "-",
    "[" * 70 + "]" * 70,
    "9" * 5000,
    '"' + "x" * 200_000 + '"',
)


TIME = "2026-01-01T00:00:00Z"
TIMES = {"created", "measured", "moved", "when"}
"""Fields with a time, whose form their JSON Schema does not tell."""


class DocumentMaker:
    """Makes JSON texts that follow a JSON Schema, with at most ``faults`` faults and ``blows`` huge parts."""

    def __init__(self, draw: random.Random, schema: dict[str, Any], faults: int = 0, blows: int = 0) -> None:
        self._draw = draw
        self._schema = schema
        self._definitions = schema.get("$defs", {})
        self._faults = faults
        self._blows = blows

    def document(self) -> str:
        return self._value(self._schema, 0)

    def field(self, name: str) -> str:
        """Return a value for one field of the document."""
        return self._value(self._schema["properties"][name], 1)

    def _value(self, schema: dict[str, Any], depth: int) -> str:
        draw = self._draw
        if self._faults and draw.random() < 0.03:
            self._faults -= 1
            return draw.choice(WRONG)
        if "$ref" in schema:
            return self._value(self._definitions[schema["$ref"].rpartition("/")[2]], depth)
        if "const" in schema or "enum" in schema:
            return json.dumps(draw.choice(schema.get("enum", [schema.get("const")])))
        if "anyOf" in schema:
            choices = schema["anyOf"]
            if depth > 6:  # ends the document
                choices = [choice for choice in choices if choice.get("type") == "null"] or choices
            return self._value(draw.choice(choices), depth)
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return f'"{self._text(schema)}"'
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return draw.choice(("true", "false"))
        return "null"

    def _object(self, schema: dict[str, Any], depth: int) -> str:
        required, properties = schema.get("required", ()), schema.get("properties")
        if properties is None:
            value = self._value(schema["additionalProperties"], depth + 1) if "additionalProperties" in schema else "1"
            size, names = self._size(schema.get("maxProperties")), schema.get("propertyNames", {})
            key = self._text(names if "pattern" in names else {"pattern": MARK})
            return "{" + self._repeated(f'"{key}":{value}', size if MARK in key else min(size, 1)) + "}"
        share = self._draw.choice((0.0, 0.3, 1.0))
        if schema.get("title") == "Timing":
            return self._timing(properties)
        pairs = [
            f'"{name}":{json.dumps(TIME) if name in TIMES else self._value(part, depth + 1)}'
            for name, part in properties.items()
            if name in required or self._draw.random() < share
        ]
        return "{" + ",".join(pairs) + "}"

    def _timing(self, properties: dict[str, Any]) -> str:
        """Return step times that agree with each other, as the record demands."""
        ranks, steps = self._size(None) or 1, self._size(100_000) or 1
        steps = min(steps, max(1, 300_000 // ranks))
        seconds = self._draw.choice(("0.1", "1e-9", "1e7", "3"))
        listed = f"[{','.join([seconds] * steps)}]"
        memory = f"[{','.join(['1'] * steps)}]"
        rank = f'{{"step_s":{listed},"cpu_s":{listed},"wait_s":{listed},"memory_bytes":{memory},"peak_bytes":1}}'
        ranks_text = ",".join(f'"{number}":{rank}' for number in range(ranks))
        total = min(float(seconds) * steps, 1e7)
        return (
            f'{{"asked":{steps},"cut":{self._draw.choice((0, 2, steps))},"method":"m","clock":"perf_counter",'
            f'"step_s":{listed},"ranks":{{{ranks_text}}},"harness_s":{total},"harness_steady_s":{total},'
            f'"memory_peak_bytes":1,"memory_slope_bytes":0,"tokens_per_expert":[{self._number(properties)}]}}'
        )

    def _array(self, schema: dict[str, Any], depth: int) -> str:
        if "prefixItems" in schema:
            return f"[{','.join(self._value(part, depth + 1) for part in schema['prefixItems'])}]"
        least = schema.get("minItems", 0)
        size = max(least, self._size(schema.get("maxItems")))
        item = self._value(schema["items"], depth + 1) if size else ""
        return f"[{self._repeated(item, size)}]"

    def _size(self, most: int | None) -> int:
        """Return a number of items: mostly few, sometimes as many as an artifact can hold, or one too many."""
        if self._blows and self._draw.random() < 0.2:
            self._blows -= 1
            limit = 1_000_000 if most is None else most + 1
            return min(limit, int(10 ** self._draw.uniform(1, 6)))
        return self._draw.choice((0, 1, 1, 2))

    def _repeated(self, item: str, size: int) -> str:
        size = min(size, 30_000_000 // (len(item) + 1))
        if MARK in item and (size < 3 or self._draw.random() < 0.7):
            return ",".join(item.replace(MARK, str(number)) for number in range(size))
        return ",".join([item] * size)

    def _text(self, schema: dict[str, Any]) -> str:
        pattern, least = schema.get("pattern", ""), schema.get("minLength", 0)
        texts = [text for text in TEXTS if len(text) >= least and re.search(pattern, text)]
        return self._draw.choice(texts or TEXTS)

    def _number(self, schema: dict[str, Any]) -> str:
        low = max(schema.get("minimum", -1e308), schema.get("exclusiveMinimum", -1e308))
        high = min(schema.get("maximum", 1e308), schema.get("exclusiveMaximum", 1e308))
        numbers = [*(f"{bound:g}" for bound in (low + 1, high - 1) if abs(bound) < 1e15)]
        numbers += [
            number
            for number in NUMBERS
            if low <= float(number) <= high and (schema.get("type") == "number" or number.lstrip("-").isdigit())
        ]
        return self._draw.choice(numbers or ("1",))
