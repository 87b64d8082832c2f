"""Labels of self-hosted runners, read from the ``runs-on`` lines of workflows that are there already.

The lines are read one by one, not as YAML, for which regbot has no parser: plain, quoted and bracketed values, lists
below the key, and ``group`` with ``labels``. What an expression decides (``${{ matrix.os }}``) is not guessed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml")
HOSTED = re.compile(r"(?:ubuntu|windows|macos)-[\w.-]+", re.IGNORECASE)
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=/+-]{0,127}")
"""What is written into a workflow; a label that needs anything else is asked for by hand."""
GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
GPU = re.compile(
    r"gpu|cuda|nvidia|rocm|(?:^|[^a-z0-9])(?:a100|h100|h200|b200|b300|gb200|gb300|l40s?|mi\d{3}x?)(?:$|[^a-z0-9])",
    re.IGNORECASE,
)

_RUNS_ON = re.compile(r"^(?P<indent>[ ]*)(?:- )?runs-on:[ \t]*(?P<value>.*)$")
_KEY = re.compile(r"^(?P<indent>[ ]*)(?P<key>group|labels):[ \t]*(?P<value>.*)$")
_ITEM = re.compile(r"^(?P<indent>[ ]*)-[ ]+(?P<value>.*)$")


@dataclass(frozen=True, order=True)
class Runner:
    """What ``runs-on`` asks for: labels, of which all must fit, and the group to look in ('' for any)."""

    labels: tuple[str, ...]
    group: str = ""

    @property
    def gpu(self) -> bool:
        """Do its labels speak of a GPU?"""
        return any(GPU.search(word) for word in (*self.labels, self.group))

    @property
    def yaml(self) -> str:
        """As the value of ``runs-on``, on one line."""
        labels = f"[{', '.join(map(_scalar, self.labels))}]"
        if not self.group:
            return labels
        return f"{{ group: {_scalar(self.group)}{f', labels: {labels}' if self.labels else ''} }}"

    def __str__(self) -> str:
        labels = ", ".join(self.labels)
        return labels + f"{' of ' if labels else ''}group {self.group}" if self.group else labels


DEFAULT = Runner(("self-hosted", "regbot"))


def self_hosted(text: str) -> list[Runner]:
    """The runners of one workflow that GitHub does not host, in its order, each once."""
    found = [runner for runner in _asked_for(text.splitlines()) if _fits(runner)]
    return list(dict.fromkeys(found))


def best(runners: list[Runner]) -> Runner | None:
    """The one that timing is likely to be meant for: a GPU, then ``self-hosted`` by name, then the commonest."""
    ranked = sorted(
        set(runners), key=lambda each: (not each.gpu, "self-hosted" not in each.labels, -runners.count(each), each)
    )
    return ranked[0] if ranked else None


def _fits(runner: Runner) -> bool:
    if not runner.labels and not runner.group:
        return False
    if not all(LABEL.fullmatch(label) for label in runner.labels) or not (
        not runner.group or GROUP.fullmatch(runner.group)
    ):
        return False
    return bool(runner.group) or "self-hosted" in runner.labels or not any(map(HOSTED.fullmatch, runner.labels))


def _asked_for(lines: list[str]) -> Iterator[Runner]:
    for number, line in enumerate(lines):
        match = _RUNS_ON.match(line)
        if match is None:
            continue
        value = _bare(match["value"])
        if value.startswith("{"):
            yield _of_mapping(value)
        elif value:
            yield Runner(_list(value))
        else:
            yield _below(lines[number + 1 :], len(match["indent"]))


def _below(lines: list[str], indent: int) -> Runner:
    """The runner whose labels, or whose group and labels, stand below ``runs-on:``."""
    labels: list[str] = []
    group, in_labels = "", True
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, item = _KEY.match(line), _ITEM.match(line)
        if item is not None and len(item["indent"]) >= indent and in_labels:
            labels += _list(item["value"])
        elif key is not None and len(key["indent"]) > indent:
            in_labels = key["key"] == "labels"
            if in_labels:
                labels += _list(key["value"])
            else:
                group = next(iter(_list(key["value"])), "")
        else:
            break
    return Runner(tuple(labels), group)


def _of_mapping(value: str) -> Runner:
    """``{ group: NAME, labels: [a, b] }`` on one line."""
    group = re.search(r"\bgroup:\s*(\"[^\"]*\"|'[^']*'|[^,}]+)", value)
    labels = re.search(r"\blabels:\s*(\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^,}]+)", value)
    named = _list(group.group(1)) if group else ()
    return Runner(_list(labels.group(1)) if labels else (), named[0] if named else "")


def _list(value: str) -> tuple[str, ...]:
    """The words of a plain, quoted or bracketed value."""
    text = _bare(value)
    parts = text[1:-1].split(",") if text.startswith("[") and text.endswith("]") else [text]
    return tuple(word for part in parts if (word := _unquoted(part.strip())))


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _bare(text: str) -> str:
    """A value without its comment."""
    return re.sub(r"(?:^|[ \t])#.*$", "", text).strip()


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text)
    reserved = text.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return text if plain and not reserved else f'"{text}"'
