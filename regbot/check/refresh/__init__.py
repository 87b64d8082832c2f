"""``regbot baseline refresh``: measure main beside the anchor, and propose new references.

A refresh creates a branch and the text of a pull request, for a person to review. It never pushes the branch.
"""

from regbot.check.refresh.flow import RefreshOptions, refresh
from regbot.check.refresh.text import refresh_page

__all__ = ["RefreshOptions", "refresh", "refresh_page"]
