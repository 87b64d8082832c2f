"""What people read: the pull request comment and the report page. Pure functions of a verdict and its session."""

from regbot.report.comment import comment
from regbot.report.page import html

__all__ = ["comment", "html"]
