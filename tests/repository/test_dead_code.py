"""Nothing is kept that only tests call."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_function_class_and_constant_of_a_module_is_used_outside_of_tests() -> None:
    sources = {
        file: path.read_text()
        for folder in ("regbot", "benchmarks", ".ci")
        for path in (ROOT / folder).rglob("*")
        for file in [path.relative_to(ROOT)]
        if file.suffix in {".py", ".j2", ".toml"} and "sources" not in file.parts
    }
    uses = Counter(word for text in sources.values() for word in re.findall(r"\w+", text))
    unused = {
        f"{file}: {named or assigned}"
        for file, text in sources.items()
        for decorated, named, assigned in re.findall(r"^(@.+\n)?(?:(?:def|class) (\w+)|(\w+)(?:: .*)? = )", text, re.M)
        if file.suffix == ".py" and file.parts[0] == "regbot" and not decorated
        if uses[named or assigned] == 1
    }
    assert unused == set()
