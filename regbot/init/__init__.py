"""``regbot init``: what a repository needs to have its pull requests judged, with what was found in it."""

from regbot.init.flow import Initialised, initialise
from regbot.init.page import page
from regbot.init.planned import InitFile, Options

__all__ = ["InitFile", "Initialised", "Options", "initialise", "page"]
