"""Find out whether a sandbox works on this machine, by running a small program in a sandbox."""

import sys
import tempfile
from pathlib import Path

from regbot.engines.launch import EngineError, Launch
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import Sandbox, bubblewrap_version, sandbox_from_settings
from regbot.records.config import ConfigError, SandboxSettings

TRY_S = 30.0


def sandbox_for(settings: SandboxSettings, untrusted: bool = False, disabled: bool = False) -> Sandbox | None:
    """Return the sandbox in which the code must run; None if it may run without one. ``disabled`` overrides the others.
    Raises ConfigError if the code needs a sandbox and none works on this machine."""
    is_untrusted = untrusted or settings.untrusted
    if disabled or not is_untrusted:
        return None
    sandbox = sandbox_from_settings(settings)
    if why := unavailable_reason(sandbox):
        raise ConfigError(
            f"untrusted code needs a sandbox, and {why}",
            "make the sandbox work, or run the code without one on a machine that has no secrets (--no-sandbox)",
        )
    return sandbox


def unavailable_reason(sandbox: Sandbox | None = None) -> str:
    """Return why ``sandbox`` (by default one with the default limits) does not work here, with advice; '' if a short
    program worked in it."""
    bubblewrap = bubblewrap_version()
    if not sys.platform.startswith("linux"):
        return "a sandbox needs Linux, and this is another system"
    if not bubblewrap:
        return "bubblewrap is not installed; install it: apt-get install bubblewrap, or dnf install bubblewrap"
    why = _try_sandbox(sandbox or Sandbox())
    return f"{bubblewrap} does not work on this machine: {why}{advise_on_namespaces()}" if why else ""


def _try_sandbox(sandbox: Sandbox) -> str:
    """Return what went wrong when a program in the sandbox wrote one file; '' if nothing."""
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        folder = Path(name)
        launch = Launch(
            command=("/bin/sh", "-c", ": >record/made"),
            cwd=folder,
            env={"PATH": "/usr/bin:/bin"},
            log=folder / "output.log",
            record_dir=folder / "record",
            timeout_s=TRY_S,
        )
        try:
            result = LocalEngine(sandbox=sandbox).run(launch)
        except EngineError as error:
            return str(error)
        if result.exit_code != 0:
            return f"a test program ended with exit code {result.exit_code}: {result.log_tail[-300:]}"
        has_written = (folder / "record" / "made").exists()
        return "" if has_written else "a test program could not write its record"


_KERNEL_SWITCHES = (
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
     "AppArmor restricts user namespaces: give bwrap and regbot's Python a profile with 'userns,' (docs/operator.md)"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "run sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "run sysctl -w user.max_user_namespaces=10000"),
)  # fmt: skip
"""Kernel settings that forbid user namespaces: file, forbidding value, advice."""


def advise_on_namespaces() -> str:
    """Return advice on what forbids user namespaces on this machine, to be appended to a message; '' if unknown."""
    for file, forbidding_value, advice in _KERNEL_SWITCHES:
        if Path(file).exists() and Path(file).read_text().strip() == forbidding_value:
            return f"; {advice}"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "; allow the container user namespaces and an unmasked /proc (docs/operator.md)"
    return ""
