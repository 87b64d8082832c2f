"""Globs of ``regbot.toml``, against the regular expressions that they stand for."""

import random
import re
import time

import pytest

from regbot.records.config.globs import matches_glob

EXPRESSIONS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matches_expression(pattern: str, path: str) -> bool:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.removesuffix("/**"))
    expression = "".join(EXPRESSIONS.get(part, re.escape(part)) for part in parts)
    return bool(re.fullmatch(expression + ("(?:/.*)?" if pattern.endswith("/**") else ""), path, re.DOTALL))


def test_a_glob_matches_like_its_regular_expression() -> None:
    source = random.Random(37)
    for _ in range(20_000):
        pattern = "".join(source.choices(["a", "b", "/", "*", "**", "**/", "?", "/**", "."], k=source.randint(1, 6)))
        path = "".join(source.choices("ab/.\n", k=source.randint(0, 7)))
        assert matches_glob(pattern, path) == matches_expression(pattern, path), (pattern, path)


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*.json", "**/a/**/a/**/a/**/*.json"])
def test_no_path_makes_a_glob_slow(pattern: str) -> None:
    start = time.process_time()
    assert not matches_glob(pattern, "a" * 500)
    assert not matches_glob(pattern, "a/" * 2000)
    assert time.process_time() - start < 2  # with a regular expression: more than a minute
