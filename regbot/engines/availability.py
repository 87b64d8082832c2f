"""Can code be confined on this machine? Tried before it is promised."""

import sys
import tempfile
from pathlib import Path

from regbot.config import ConfigError, SandboxSettings
from regbot.engines.engine import EngineError, Launch
from regbot.engines.local import LocalEngine
from regbot.engines.sandbox import Sandbox, sandbox_of, version

TRY_S = 30.0


def sandbox_for(settings: SandboxSettings, untrusted: bool = False, refused: bool = False) -> Sandbox | None:
    """The sandbox of code that is not trusted, None for code that is, or where a sandbox was ``refused``. Raises
    ConfigError where there should be one and this machine has none."""
    if refused or not (untrusted or settings.untrusted):
        return None
    sandbox = sandbox_of(settings)
    if why := available(sandbox):
        raise ConfigError(
            f"code that is not trusted is not run without a sandbox, and {why}; or run it unconfined on a machine that "
            "has no secrets (--no-sandbox)"
        )
    return sandbox


def available(sandbox: Sandbox | None = None) -> str:
    """'' where code can be confined on this machine, else why not and what to do. Tried, with a program that ends."""
    found = version()
    if not sys.platform.startswith("linux"):
        return "a sandbox needs Linux, and this is another system"
    if not found:
        return "there is no bubblewrap here; install it: apt-get install bubblewrap, or dnf install bubblewrap"
    why = _tried(sandbox or Sandbox())
    return f"{found} cannot confine here: {why}{_advice()}" if why else ""


def _tried(sandbox: Sandbox) -> str:
    with tempfile.TemporaryDirectory(prefix="regbot-") as name:
        folder = Path(name)
        launch = Launch(
            command=("/bin/sh", "-c", ": >record/made"),
            cwd=folder,
            env={"PATH": "/usr/bin:/bin"},
            log=folder / "output.log",
            record_dir=folder / "record",
            timeout_s=TRY_S,
            max_output_bytes=2**16,
            max_dir_bytes=2**16,
        )
        try:
            ended = LocalEngine(sandbox=sandbox).run(launch)
        except EngineError as error:
            return str(error)
        if ended.exit_code != 0:
            return f"a program in it ended with {ended.exit_code}: {ended.log_tail[-300:]}"
        return "" if (folder / "record" / "made").exists() else "a program in it could not write its record"


_SWITCHES = (
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
     "AppArmor restricts user namespaces: give bwrap and regbot's Python a profile with 'userns,' (docs/sandbox.md)"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "run sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "run sysctl -w user.max_user_namespaces=10000"),
)  # fmt: skip


def _advice() -> str:
    for file, forbidding, advice in _SWITCHES:
        if Path(file).exists() and Path(file).read_text().strip() == forbidding:
            return f"; {advice}"
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "; in a container it must be allowed user namespaces and an unmasked /proc (docs/sandbox.md)"
    return ""
