"""``python -m regbot``."""

from regbot.cli.app import main

main()
