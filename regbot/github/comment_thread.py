"""The comments of one pull request, read with few requests.

The first read takes at most ``MAX_PAGES`` pages. Later reads request only comments that were written or edited since
the previous read. The number of requests is limited because anybody may comment: many comments must not use up the
job's request quota.
"""

from datetime import timedelta

from regbot.github.client import Forge
from regbot.github.types import Comment, Role

MAX_PAGES = 5
"""Number of pages that the first read takes: the oldest page and the newest pages. A page has 100 comments. GitHub
allows 2,500 comments on a pull request."""
MAX_AUTHORS = 3
"""Largest number of authors whose roles are requested. The role of further authors counts as "none"."""
LISTING_DELAY = timedelta(minutes=1)
"""GitHub may list a comment some seconds late. Each read therefore starts this long before the newest known comment."""


class CommentThread:
    """Comments of the pull request ``number``, cached for the time of one job. Methods raise ForgeError.

    If somebody deletes a comment after the first read, the comment stays in the cache until ``forget`` is called.
    """

    def __init__(self, forge: Forge, number: int) -> None:
        self.forge, self.number = forge, number
        self.is_complete = True
        """Whether all comments were read; also true before the first read."""
        self._comments: dict[int, Comment] | None = None
        self._roles: dict[str, Role] = {}

    def read(self) -> list[Comment]:
        """Return the comments as they are now, oldest first.

        The first read is limited to ``MAX_PAGES``. Later reads add the comments that were written or edited since.
        """
        if self._comments is None:
            comments, self.is_complete = self.forge.recent_comments(self.number, MAX_PAGES)
            self._comments = {comment.id: comment for comment in comments}
        elif self._comments:
            newest_time = max(comment.updated for comment in self._comments.values())
            changed_comments = self.forge.changed_comments(self.number, newest_time - LISTING_DELAY)
            self._comments |= {comment.id: comment for comment in changed_comments}
        else:  # no comment is known, so there is no time from which on to look for changes
            self._comments = {comment.id: comment for comment in self.forge.comments(self.number)}
        return self.known

    def read_all(self) -> list[Comment]:
        """Return all comments, oldest first, however many pages they have. ``read`` must have been called before."""
        if not self.is_complete:
            self._comments = {comment.id: comment for comment in self.forge.comments(self.number)}
            self.is_complete = True
        return self.known

    def read_once(self) -> list[Comment]:
        """Return the comments of the last read, oldest first. The first call reads them."""
        return self.read() if self._comments is None else self.known

    @property
    def known(self) -> list[Comment]:
        """The comments of the last read, oldest first."""
        return sorted((self._comments or {}).values(), key=lambda comment: (comment.created, comment.id))

    def forget(self, id: int) -> None:
        """Remove a deleted comment from the cache."""
        if self._comments is not None:
            self._comments.pop(id, None)

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
