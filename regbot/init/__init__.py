"""``regbot init``: what a repository needs to have its pull requests judged, with what was found in it."""

from regbot.init.flow import InitFile, Initialised, Options, initialise
from regbot.init.page import page

__all__ = ["InitFile", "Initialised", "Options", "initialise", "page"]
