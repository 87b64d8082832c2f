"""Start of every guest process: ``python <this folder> REQUEST.json``, or ``--capabilities``.

Run by folder and not by module name, so that the interpreter puts exactly this folder on its path: nothing of regbot
but ``regbot_guest`` becomes importable, and nothing in the code under test can stand in front of it.
"""

import sys

from regbot_guest import capabilities, process

if __name__ == "__main__":
    sys.exit(capabilities.main() if sys.argv[1:] == ["--capabilities"] else process.main(sys.argv[1:]))
