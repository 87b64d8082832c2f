"""The batch script of a reservation: it does nothing but hold the nodes while regbot is there.

Standard library only, started by path in isolated mode. regbot writes a new number into ``heartbeat`` every few
seconds. The number, and not the file's time, is what counts: clocks of nodes may differ by minutes. Where it stays the
same for too long regbot is gone, and the nodes are given back; so they are once there is a file ``released``.
"""

import sys
import time
from pathlib import Path

LOOK_S = 2.0


def main() -> None:
    """Arguments: the folder of the reservation, and how many seconds regbot may be silent."""
    folder, silent_s = Path(sys.argv[1]), float(sys.argv[2])
    heard, since = "", time.monotonic()
    while time.monotonic() - since < silent_s:
        if (folder / "released").exists():
            return
        try:
            beat = (folder / "heartbeat").read_text()
        except OSError:  # a shared file system that is away for a moment
            beat = ""
        if beat and beat != heard:
            heard, since = beat, time.monotonic()
        time.sleep(LOOK_S)
    print(f"regbot has been silent for {silent_s:.0f} s: the nodes are given back", flush=True)


if __name__ == "__main__":
    main()
