"""Entry point of every guest process. Its arguments are ``REQUEST.json ...``, ``--capabilities``, ``--packages
NAME=MODULE ...`` or ``--reference REQUEST.json``.

The process is started as ``python <this folder> ...`` and not by module name. So the interpreter puts this folder first
on its search path. ``regbot_guest`` is therefore the only importable part of regbot, and code under test cannot shadow
it.
"""

import sys

from regbot_guest import capabilities, installed_packages, process, reference

if __name__ == "__main__":
    if sys.argv[1:2] == ["--reference"]:
        sys.exit(reference.main(*sys.argv[2:]))
    if sys.argv[1:2] == ["--packages"]:
        sys.exit(installed_packages.main(sys.argv[2:]))
    sys.exit(capabilities.main() if sys.argv[1:] == ["--capabilities"] else process.main(sys.argv[1:]))
