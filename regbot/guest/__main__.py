"""Start of every guest process: ``python <this folder> REQUEST.json``.

Run by folder and not by module name, so that the interpreter puts exactly this folder on its path: nothing of regbot
but ``regbot_guest`` becomes importable, and nothing in the code under test can stand in front of it.
"""

import sys

from regbot_guest.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
