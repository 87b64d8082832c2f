"""``regbot init``: install the configuration and workflows with which regbot judges a repository's pull requests."""

from regbot.init.file_plan import InitOptions
from regbot.init.flow import initialise
from regbot.init.page import page

__all__ = ["InitOptions", "initialise", "page"]
