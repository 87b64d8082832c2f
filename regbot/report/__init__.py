"""Write the pull request comment and the report page. All functions depend only on a verdict and its session."""

from regbot.report.comment import comment, comment_parts
from regbot.report.page import html

__all__ = ["comment", "comment_parts", "html"]
