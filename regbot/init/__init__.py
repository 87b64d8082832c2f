"""``regbot init``: install the configuration and workflows with which regbot judges a repository's pull requests."""

from regbot.init.flow import InitOptions, initialise, page

__all__ = ["InitOptions", "initialise", "page"]
