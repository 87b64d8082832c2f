"""Start of every guest process: ``python <this folder> REQUEST.json``, or ``--capabilities``, or
``--reference REQUEST.json``.

Run by folder and not by module name, so that the interpreter puts exactly this folder on its path: nothing of regbot
but ``regbot_guest`` becomes importable, and nothing in the code under test can stand in front of it.
"""

import sys

from regbot_guest import capabilities, process, reference

if __name__ == "__main__":
    if sys.argv[1:2] == ["--reference"]:
        sys.exit(reference.main(*sys.argv[2:]))
    sys.exit(capabilities.main() if sys.argv[1:] == ["--capabilities"] else process.main(sys.argv[1:]))
