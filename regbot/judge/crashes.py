"""Decide whether a crash of head's trace shows a fault of the pull request.

A trace runs without a GPU, so regbot replaces parts of torch and of the framework. If a pull request renames or moves a
function that regbot replaces, the trace crashes although the pull request is right. So a crash is its fault only if the
checkout's own code raised the error in a file that the pull request changes, if the error passed through no code of
regbot and names no key that regbot set, and if all files were checked out.

The guest writes the traceback, so the code under test could forge it. A forged traceback can only turn FAIL into
INVALID, and both block the pull request.
"""

from collections.abc import Sequence

from regbot.records.crash import Crash, CrashFrame

UNKNOWN_REVISION = "regbot does not support this revision"
TRACE_LIMIT = (
    "A trace has no GPU, so it cannot tell whether head passed a wrong value; run head on real ranks to see whether it "
    "crashes there too"
)


def explain_doubt(crash: Crash, changed_files: Sequence[str] | None) -> str:
    """Return why ``crash`` does not show a fault of the pull request; '' if it does. ``changed_files`` are the paths
    that differ between base and head (a submodule is one path); None if they are not known."""
    if not crash.frames:
        return "the process left no traceback, so nothing shows whose fault this is"
    # The frames are in order of the calls, so the last one raised the error. ``owner`` says whose code a frame runs.
    checkout_frames = [frame for frame in crash.frames if frame.owner == "checkout"]
    caller = (
        f", called from {_describe(checkout_frames[-1])}" if checkout_frames else ", before any code of the checkout"
    )
    if regbot_frames := [frame for frame in crash.frames if frame.owner == "regbot"]:
        return f"{UNKNOWN_REVISION}: the error passed through code of regbot, {_describe(regbot_frames[-1])}{caller}"
    if crash.keys:  # configuration keys that regbot set and that the error names
        return f"{UNKNOWN_REVISION}: the error names {', '.join(crash.keys[:5])}, which regbot sets"
    raising_frame = crash.frames[-1]
    if raising_frame.owner != "checkout":
        return f"the error was raised in {_describe(raising_frame)}{caller}. {TRACE_LIMIT}"
    if changed_files is None:
        return "the list of files that differ between base and head is not known, so nothing shows whose fault this is"
    raising_file = raising_frame.file
    if not any(raising_file == path or raising_file.startswith(f"{path}/") for path in changed_files):
        return f"head does not change {raising_file}, whose code raised the error. {TRACE_LIMIT}"
    return ""


def involves_regbot(crash: Crash) -> bool:
    """Return whether the error passed through code of regbot, or names a configuration key that regbot sets."""
    return bool(crash.keys) or any(frame.owner == "regbot" for frame in crash.frames)


def _describe(frame: CrashFrame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return f"{frame.file}{line} in {frame.function}"
