"""Read the labels of self-hosted runners from the ``runs-on`` keys in a repository's workflows.

regbot has no YAML parser, so this module reads line by line. It understands plain, quoted and bracketed values, lists
below the key, and ``group`` with ``labels``. It does not evaluate expressions such as ``${{ matrix.os }}``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORKFLOW = re.compile(r"\.github/workflows/[^/]+\.ya?ml")
HOSTED = re.compile(r"(?:ubuntu|windows|macos)-[\w.-]+", re.IGNORECASE)
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=/+-]{0,127}")
"""Labels that regbot can write into a workflow. A user must write other labels into the workflow by hand."""
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
    """A value of ``runs-on``. A runner must have all ``labels`` and be in ``group`` ('' for any group)."""

    labels: tuple[str, ...]
    group: str = ""

    @property
    def gpu(self) -> bool:
        """Whether the labels or the name of the group suggest a GPU."""
        return any(GPU.search(word) for word in (*self.labels, self.group))

    @property
    def yaml(self) -> str:
        """The value for ``runs-on``, as one line of YAML."""
        labels = f"[{', '.join(map(_yaml_scalar, self.labels))}]"
        if not self.group:
            return labels
        labels_text = f", labels: {labels}" if self.labels else ""
        return f"{{ group: {_yaml_scalar(self.group)}{labels_text} }}"

    def __str__(self) -> str:
        """Return the labels and the group as people read them, such as ``self-hosted, gpu of group nodes``."""
        labels = ", ".join(self.labels)
        if not self.group:
            return labels
        return f"{labels} of group {self.group}" if labels else f"group {self.group}"


DEFAULT = Runner(("self-hosted", "regbot"))


def find_self_hosted(text: str) -> list[Runner]:
    """Return the self-hosted runners of one workflow, in the order of the workflow and without duplicates."""
    runners = [runner for runner in _parse_runs_on(text.splitlines()) if _is_self_hosted(runner)]
    return list(dict.fromkeys(runners))


def choose_runner(runners: list[Runner]) -> Runner | None:
    """Return the best runner for timing; None without runners.

    Runners with a GPU come first, then those with the label ``self-hosted``, then the most frequent one.
    """
    ranked = sorted(
        set(runners),
        key=lambda runner: (not runner.gpu, "self-hosted" not in runner.labels, -runners.count(runner), runner),
    )
    return ranked[0] if ranked else None


def _is_self_hosted(runner: Runner) -> bool:
    """Return whether a runner is probably self-hosted, and regbot can write its labels and group into a workflow.

    A runner is taken as self-hosted if it has a group, the label ``self-hosted``, or no label of GitHub's own runners.
    """
    if not runner.labels and not runner.group:
        return False
    has_valid_labels = all(LABEL.fullmatch(label) for label in runner.labels)
    has_valid_group = not runner.group or GROUP.fullmatch(runner.group) is not None
    if not has_valid_labels or not has_valid_group:
        return False
    has_hosted_label = any(map(HOSTED.fullmatch, runner.labels))
    return bool(runner.group) or "self-hosted" in runner.labels or not has_hosted_label


def _parse_runs_on(lines: list[str]) -> Iterator[Runner]:
    """Yield the value of each ``runs-on`` key of a workflow.

    An expression such as ``${{ matrix.os }}`` becomes a label that is not valid, so ``_is_self_hosted`` rejects it."""
    for index, line in enumerate(lines):
        match = _RUNS_ON.match(line)
        if match is None:
            continue
        value = _strip_comment(match["value"])
        if value.startswith("{"):
            yield _parse_mapping(value)
        elif value:
            yield Runner(_parse_list(value))
        else:  # the value is on the lines below
            yield _parse_block(lines[index + 1 :], len(match["indent"]))


def _parse_block(lines: list[str], indent: int) -> Runner:
    """Parse the labels and the group on the lines below ``runs-on:``. ``indent`` is the indentation of this key."""
    labels: list[str] = []
    group = ""
    in_labels = True  # whether list items are labels: below runs-on itself, and below the key labels
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, item = _KEY.match(line), _ITEM.match(line)
        if item is not None and len(item["indent"]) >= indent and in_labels:
            labels += _parse_list(item["value"])
        elif key is not None and len(key["indent"]) > indent:
            in_labels = key["key"] == "labels"
            if in_labels:
                labels += _parse_list(key["value"])
            else:
                group_names = _parse_list(key["value"])
                group = group_names[0] if group_names else ""
        else:
            break
    return Runner(tuple(labels), group)


def _parse_mapping(value: str) -> Runner:
    """Parse a value in one line, such as ``{ group: NAME, labels: [a, b] }``."""
    group_match = re.search(r"\bgroup:\s*(\"[^\"]*\"|'[^']*'|[^,}]+)", value)
    labels_match = re.search(r"\blabels:\s*(\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^,}]+)", value)
    group_names = _parse_list(group_match[1]) if group_match else ()
    labels = _parse_list(labels_match[1]) if labels_match else ()
    return Runner(labels, group_names[0] if group_names else "")


def _parse_list(value: str) -> tuple[str, ...]:
    """Return the words in a plain, quoted or bracketed value."""
    text = _strip_comment(value)
    parts = text[1:-1].split(",") if text.startswith("[") and text.endswith("]") else [text]
    return tuple(word for part in parts if (word := _unquote(part.strip())))


def _unquote(text: str) -> str:
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _strip_comment(text: str) -> str:
    return re.sub(r"(?:^|[ \t])#.*$", "", text).strip()


def _yaml_scalar(text: str) -> str:
    """Return ``text`` as a string in YAML, with quotes if YAML could read it as another type without them."""
    is_plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text) is not None
    is_reserved = text.lower() in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return text if is_plain and not is_reserved else f'"{text}"'
