"""The command ``regbot``, also as ``python -m regbot``.

Only ``typer.Exit`` ends it with the exit code of a verdict. Python and typer end with 1 for an uncaught error, a failed
import and a broken pipe, which would read as FAIL.
"""

import contextlib
import sys
import traceback
from typing import NoReturn

from regbot.errors import INTERNAL_ERROR, INTERRUPTED, UserError


def main() -> NoReturn:
    """Run the command that the arguments of this process name, and exit."""
    sys.exit(_run())


def _run() -> int:
    """Run the command and return its exit code."""
    try:
        import typer

        from regbot.cli.app import app

        app()
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        if isinstance(end.__context__, typer.Exit):
            return end.__context__.exit_code
        if end.code in (0, UserError.exit_code):  # a completion of the shell; wrong arguments
            return int(end.code)
    except BaseException:
        with contextlib.suppress(Exception):  # standard error may be closed
            traceback.print_exc()
            sys.stderr.write("regbot: this is a bug in regbot; please report it with the lines above\n")
    return INTERNAL_ERROR


if __name__ == "__main__":
    main()
