"""The command ``regbot``, also as ``python -m regbot``.

Only ``typer.Exit`` ends it with the exit code of a verdict. Python and typer end with 1 for an uncaught error, a failed
import and a broken pipe, which would read as FAIL. So may a library in C that calls ``exit``.
"""

import atexit
import contextlib
import ctypes
import os
import sys
import traceback
from typing import NoReturn

from regbot.errors import INTERNAL_ERROR, INTERRUPTED, UserError

_EXIT_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)
_give_up = _EXIT_FUNCTION(lambda _status, _argument: os._exit(INTERNAL_ERROR))


def command() -> NoReturn:
    """``main`` as a process of its own: an ``exit`` of a library in C ends it with ``INTERNAL_ERROR``."""
    code = INTERNAL_ERROR

    def leave() -> None:
        """End the process without the functions of ``on_exit``, after all others of ``atexit``."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            os._exit(INTERNAL_ERROR)
        os._exit(code)

    atexit.register(leave)
    if (on_exit := getattr(ctypes.CDLL(None), "on_exit", None)) is not None:  # glibc has it
        on_exit(_give_up, None)
    code = _run()
    sys.exit(code)


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
    command()
