"""The comments of one pull request, read once with few requests.

The number of requests is limited because anybody may comment: many comments must not use up the job's request quota.
"""

from collections.abc import Callable

from regbot.github.client import Forge
from regbot.github.types import Comment, Role

MAX_PAGES = 5
"""Number of pages that are read: the oldest page and the newest pages. A page has 100 comments. GitHub allows 2,500
comments on a pull request."""
MAX_AUTHORS = 3
"""Largest number of authors whose roles are requested. The role of further authors counts as "none"."""


class CommentThread:
    """Comments of the pull request ``number``, cached for the time of one job. Methods raise ForgeError."""

    def __init__(self, forge: Forge, number: int) -> None:
        self.forge, self.number = forge, number
        self.is_complete = True
        """Whether all comments were read; also true before the first read."""
        self._comments: list[Comment] | None = None
        self._roles: dict[str, Role] = {}

    def read(self) -> list[Comment]:
        """Return the comments, oldest first. The first call reads at most ``MAX_PAGES``."""
        if self._comments is None:
            self._comments, self.is_complete = self.forge.recent_comments(self.number, MAX_PAGES)
        return self._comments

    def read_all(self) -> list[Comment]:
        """Return all comments, oldest first, however many pages they have."""
        self._comments, self.is_complete = self.forge.comments(self.number), True
        return self._comments

    def create(self, body: str, select: Callable[[list[Comment]], Comment | None]) -> None:
        """Create a comment. If GitHub's reply is lost, ``select`` finds the created comment among all comments."""
        created = self.forge.create_comment(self.number, body, lambda: select(self.read_all()))
        self._comments = [*(comment for comment in self.read() if comment.id != created.id), created]

    def edit(self, comment: Comment, body: str) -> None:
        self._comments = [known for known in self.read() if known.id != comment.id]
        self.forge.edit_comment(comment.id, body)
        self._comments.append(comment.model_copy(update={"body": body}))

    def role(self, login: str) -> Role | None:
        """Return the present role of an author. The role of each author is requested only once.

        Return None for an author whose role was not requested, because the roles of ``MAX_AUTHORS`` other authors were
        requested before.
        """
        if login not in self._roles:
            if len(self._roles) >= MAX_AUTHORS:
                return None
            self._roles[login] = self.forge.role(login)
        return self._roles[login]
