"""Groups of commands, one file each, as thin as ``regbot.cli``."""
