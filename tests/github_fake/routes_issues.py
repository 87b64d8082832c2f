"""Comments, reactions, labels, and who somebody is in a repository.

A pull request is an issue here too, so "pull_requests" opens its comments and labels as "issues" does. Reactions to
comments of a pull request need both (rules.md).
"""

from typing import Any

from . import shapes
from .call import BODY_LIMIT, Answer, Call, Refused, invalid, route
from .records import Comment, Issue

_REPO = "/repos/{owner}/{repo}"
_COMMENTS_LIMIT = 2_500  # of one issue or pull request
_READ, _WRITE = ("issues:read", "pull_requests:read"), ("issues:write", "pull_requests:write")


def _issue(call: Call) -> Issue:
    found: Issue = call.found("issue_number", call.repo.issues)
    # What may be done to a pull request's thread with "pull_requests" may not be done to an issue's.
    if call.token and found.number not in call.repo.pulls and not call.token.may("issues", "read"):
        raise Refused(403, "Resource not accessible by integration")
    return found


def _comment(call: Call) -> Comment:
    found: Comment = call.found("comment_id", call.repo.all_comments)
    return found


def text(call: Call, resource: str) -> str:
    """The body that was sent, if it is not too long."""
    body: str = call.body.get("body") or ""
    if len(body) > BODY_LIMIT:
        raise invalid(resource, "body", f"body is too long (maximum is {BODY_LIMIT} characters)")
    return body


@route("GET", f"{_REPO}/issues/{{issue_number}}/comments", *_READ)
def list_comments(call: Call) -> Answer:
    """Oldest first, as GitHub gives them; no parameter changes that."""
    return call.page(call.repo.comments(_issue(call).number), lambda one: shapes.comment(call.repo, one))


@route("POST", f"{_REPO}/issues/{{issue_number}}/comments", *_WRITE)
def create_comment(call: Call) -> Answer:
    body = text(call, "IssueComment")
    if not body.strip():
        raise invalid("IssueComment", "body", "Body cannot be blank", "missing_field")
    if len(call.repo.comments(_issue(call).number)) >= _COMMENTS_LIMIT:
        raise Refused(403, "Commenting is disabled on issues with more than 2500 comments")
    made = call.repo.comment(_issue(call).number, call.login, body)
    return Answer(201, shapes.comment(call.repo, call.repo.all_comments[made]))


@route("GET", f"{_REPO}/issues/comments/{{comment_id}}", *_READ)
def get_comment(call: Call) -> Any:
    return shapes.comment(call.repo, _comment(call))


@route("PATCH", f"{_REPO}/issues/comments/{{comment_id}}", *_WRITE)
def edit_comment(call: Call) -> Any:
    one = _comment(call)
    call.repo.edit_comment(one.id, text(call, "IssueComment"))
    return shapes.comment(call.repo, one)


@route("GET", f"{_REPO}/issues/comments/{{comment_id}}/reactions", "issues:read")
def list_reactions(call: Call) -> Answer:
    one = _comment(call)
    return call.page(one.reactions, lambda reaction: _reaction(call, one, *reaction))


@route("POST", f"{_REPO}/issues/comments/{{comment_id}}/reactions", "issues:write")
def react(call: Call) -> Answer:
    """200 instead of 201 for one that is there already. GitHub documents "issues" alone, and refuses a reaction to a
    comment of a pull request without "pull_requests"."""
    one, reaction = _comment(call), (call.login, call.body["content"])
    if one.number in call.repo.pulls and call.token and not call.token.may("pull_requests", "write"):
        raise Refused(403, "Resource not accessible by integration")
    known = reaction in one.reactions
    one.reactions += [] if known else [reaction]
    return Answer(200 if known else 201, _reaction(call, one, *reaction))


def _reaction(call: Call, one: Comment, login: str, content: str) -> dict[str, Any]:
    number = one.id * 100 + one.reactions.index((login, content))
    return {"id": number, "user": shapes.user(call.hub, login), "content": content, "created_at": one.created}


@route("DELETE", f"{_REPO}/issues/{{issue_number}}/labels/{{name}}", *_WRITE)
def remove_label(call: Call) -> Any:
    one = _issue(call)
    if call.path["name"] not in one.labels:
        raise Refused(404, "Label does not exist")
    one.labels.remove(call.path["name"])
    return [shapes.label(name) for name in one.labels]


@route("GET", f"{_REPO}/collaborators/{{username}}/permission", "metadata:read")
def permission(call: Call) -> Any:
    """``permission`` has four values only, maintain is write there and triage read; ``role_name`` tells them apart."""
    role = call.repo.role(call.path["username"])
    return {"permission": {"maintain": "write", "triage": "read"}.get(role, role), "role_name": role}
