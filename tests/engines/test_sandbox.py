"""The sandbox, tested with real programs that try to escape: all fail inside it, and all succeed without it."""

import os
import platform
import resource
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from regbot.cli.doctor import diagnosis as doctor
from regbot.engines import EngineError, LaunchResult, LocalEngine, confinement
from regbot.engines import sandbox as sandboxes
from regbot.engines.availability import try_escapes, unavailable_reason
from regbot.engines.confinement import device_options
from regbot.engines.escape import PROCESSES
from regbot.engines.sandbox import confine, unbounded
from regbot.engines.supervisor import LARGE_RECORD
from regbot.records.config import SandboxSettings
from support import escapes
from support.escapes import MEMORY_GB, PIDS, TMP_MB, escaped, unconfined
from support.required import needed

SANDBOX = SandboxSettings(tmp_mb=TMP_MB, pids=PIDS)
UNAVAILABLE = unavailable_reason() if platform.system() == "Linux" else "needs Linux"
confining = needed("SANDBOX", UNAVAILABLE)


# ---- escapes


@confining
@pytest.mark.parametrize("name", sorted(escapes.ATTEMPTS))
def test_nothing_escapes(name: str, tmp_path: Path) -> None:
    sandbox = SANDBOX.model_copy(update={"memory_gb": MEMORY_GB if name == "memory" else None})
    if name in ("fork_bomb", "memory") and (why := unbounded(sandbox)):
        pytest.skip("; ".join(why.values()))
    escape = escaped(LocalEngine(sandbox=sandbox).run, name, tmp_path / "run")
    assert escape.done == []
    assert escape.ended.unkilled == 0
    if name not in ("survive", "memory"):
        assert escape.stopped  # it ran, and its attempts failed


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(escapes.ATTEMPTS))
def test_every_program_of_the_suite_escapes_where_there_is_no_sandbox(name: str, tmp_path: Path) -> None:
    escape = escaped(unconfined, name, tmp_path / "run")
    assert escape.done, escape


@confining
def test_the_harness_is_hidden_inside_a_visible_folder(tmp_path: Path) -> None:
    """As if regbot were installed in the environment of the code under test."""
    holding = SANDBOX.model_copy(update={"read": [str(Path(str(resources.files("regbot"))).parent)]})
    assert escaped(LocalEngine(sandbox=holding).run, "read_harness", tmp_path / "run").done == []


def run(folder: Path, code: str, sandbox: SandboxSettings = SANDBOX, **changes: Any) -> LaunchResult:
    folder.mkdir(exist_ok=True)
    values: dict[str, Any] = {"command": (sys.executable, "-I", "-S", "-c", code), "readable": (), **changes}
    return LocalEngine(sandbox=sandbox).run(escapes.launch(folder, "memory", {}, **values))


@confining
def test_a_guest_cannot_kill_its_supervisor(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "import os; os.kill(os.getppid(), 9); print('alive')")
    assert (result.exit_code, result.log_tail) == (0, "alive")
    assert "No such process" in run(tmp_path / "run", "import os; os.kill(-1, 9)").log_tail


@confining
def test_a_guest_has_no_capability_and_can_get_none(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "print(*[l for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew'))])")
    fields = dict(line.split(":") for line in result.log_tail.splitlines())
    assert {value.strip() for name, value in fields.items() if "Cap" in name} == {"0" * 16}
    assert fields[" NoNewPrivs"].strip() == "1"


@confining
def test_a_variable_of_the_guest_does_not_affect_bubblewrap(tmp_path: Path) -> None:
    """Otherwise bubblewrap would load a library from the checkout, outside of the sandbox."""
    request = confine(
        {"command": ("/bin/true",), "env": {"LD_PRELOAD": "evil.so"}, "cwd": "/"},
        escapes.launch(tmp_path, "memory", {}, command=("/bin/true",)),
        SANDBOX,
    )
    assert request["env"] == {}
    position = request["command"].index("LD_PRELOAD")
    assert request["command"][position - 1 : position + 2] == ["--setenv", "LD_PRELOAD", "evil.so"]


@confining
def test_deepep_keeps_its_settings_and_compiles_into_a_folder_that_the_guest_may_write_to(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    given = {"EP_DISABLE_GIN": "1", "EP_JIT_CACHE_DIR": str(own), "HYBRID_EP_CACHE_DIR": "/elsewhere"}
    code = f"import os; print(*[os.environ[name] for name in {list(given)}])"
    result = run(tmp_path / "run", code, env=given, writable=(own,))
    assert result.log_tail == f"1 {own} /tmp/home/hybridep"


@confining
def test_a_guest_may_write_to_a_writable_checkout_only(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "run").mkdir()
    code = "open('log.txt', 'w').write('kept')"
    assert run(tmp_path / "run", code, cwd=tree, writable=(tree,)).exit_code == 0
    assert (tree / "log.txt").read_text() == "kept"
    assert "Read-only file system" in run(tmp_path / "run", code, cwd=tree).log_tail


# ---- the record


@confining
def test_a_record_is_copied_with_its_files_change_times(tmp_path: Path) -> None:
    code = (
        "import os, time\n"
        "os.makedirs('record/deep/er'); open('record/deep/er/a', 'w').write('text'); os.chmod('record/deep/er/a', 0)\n"
        "os.utime('record/deep/er/a', (1, 1)); os.chmod('record/deep', 0)\n"
        "os.symlink('/etc/shadow', 'record/link'); os.mkfifo('record/fifo'); print(time.time())"
    )
    result = run(tmp_path / "run", code)
    record = tmp_path / "run" / "record"
    assert (result.exit_code, result.excess) == (0, "")
    assert sorted(str(path.relative_to(record)) for path in record.rglob("*")) == [
        "deep",
        "deep/er",
        "deep/er/a",
    ], "without links and pipes"
    copy = record / "deep" / "er" / "a"
    assert copy.read_text() == "text"
    assert copy.stat().st_mtime == pytest.approx(float(result.log_tail), abs=5)  # not 1, which the guest had set


@confining
def test_a_record_that_is_too_large_ends_the_guest_and_is_not_copied(tmp_path: Path) -> None:
    code = "f = open('record/big', 'wb', buffering=0)\nwhile True:\n try: f.write(bytes(2**20))\n except OSError: pass"
    result = run(tmp_path / "run", code)
    assert (result.excess, result.exit_code) == (LARGE_RECORD, None)
    assert list((tmp_path / "run" / "record").iterdir()) == []


@confining
def test_a_record_that_would_be_too_large_as_a_copy_is_not_copied(tmp_path: Path) -> None:
    result = run(tmp_path / "run", "open('record/big', 'wb').truncate(2**40)")
    assert (result.excess, result.exit_code) == (LARGE_RECORD, 0)
    assert list((tmp_path / "run" / "record").iterdir()) == []


@confining
def test_deeply_nested_folders_in_a_record_do_not_block_regbot(tmp_path: Path) -> None:
    code = "import os\nos.chdir('record')\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')"
    result = run(tmp_path / "run", code)
    assert (result.exit_code, result.excess) == (0, LARGE_RECORD)


@pytest.mark.slow
@confining
def test_regbot_sees_the_processor_time_of_a_confined_guest(tmp_path: Path) -> None:
    """Processor time that is not known to be the run's own counts as another tenant's and voids the run."""
    code = (
        "import os, time\nchild = os.fork()\nwhile time.process_time() < 0.5: pass\n"
        "os.waitpid(child, 0) if child else os._exit(0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run(tmp_path / "run", code).exit_code == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime >= 1.0


@pytest.mark.slow
@confining
def test_two_ranks_meet_without_a_network(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "rank.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo'); sent, got = torch.arange(4.0), torch.empty(4)\n"
        "dist.all_to_all_single(got, sent)\n"
        "if dist.get_rank() == 0: print('got', got.tolist())\n"
        "dist.destroy_process_group()\n"
    )
    command = (sys.executable, str(tmp_path / "rank.py"))
    sandbox = SANDBOX.model_copy(update={"pids": 1024, "tmp_mb": 256})
    result = run(tmp_path / "run", "", sandbox, command=command, ranks=2, readable=(tmp_path / "rank.py",))
    assert result.exit_code == 0, result.log_tail
    assert "got [0.0, 1.0, 0.0, 1.0]" in result.log_tail


# ---- visible paths


def test_the_root_folder_cannot_be_made_visible(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="shows the root folder"):
        confine({"command": ("/bin/true",), "env": {}}, escapes.launch(tmp_path, "memory", {}, cwd=Path("/")), SANDBOX)


def environment_in(checkout: Path, home: Path) -> Path:
    """Create an environment in a checkout whose pyvenv.cfg names ``home`` as its base."""
    (checkout / "venv" / "bin").mkdir(parents=True)
    (checkout / "venv" / "pyvenv.cfg").write_text(f"home = {home / 'bin'}\n")
    python = checkout / "venv" / "bin" / "python"
    python.symlink_to(home / "bin" / "python3")
    return python


def test_a_checkout_cannot_make_a_private_folder_visible_as_its_interpreter(tmp_path: Path) -> None:
    private = tmp_path / "private"
    for name in ("bin/python3", "lib/python3.11/os.py", "token"):
        (private / name).parent.mkdir(parents=True, exist_ok=True)
        (private / name).write_text("#!/bin/sh\n")
    (private / "bin" / "python3").chmod(0o755)
    python = environment_in(tmp_path / "tree", private)
    program = escapes.launch(tmp_path / "tree", "memory", {}, command=(str(python), "-c", ""), env={"PATH": "/usr/bin"})
    request = {"command": program.command, "env": program.env}
    with pytest.raises(
        EngineError, match=r"does not show to an environment inside the checkout; name it in regbot\.toml"
    ):
        confine(request, program, SANDBOX)
    command_line = confine(request, program, SANDBOX.model_copy(update={"read": [str(private)]}))["command"]
    assert str(private) in command_line


LINKED_ENVIRONMENTS = {
    "absolute folder": {".venv/bin": "{other}/bin"},
    "relative folder": {".venv/bin": "../../other/bin"},
    "environment": {".venv": "{other}"},
    "parent of the environment": {"../tree/.venv": "../other"},
    "chain": {".venv/bin": "../links/bin", "links": "../other"},
    "file": {".venv/bin/python": "{other}/bin/python"},
    "file through a linked folder": {"links": "../other", ".venv/bin/python": "../../links/bin/python"},
}
"""Links of a checkout, with their targets, that make its ``.venv/bin/python`` the interpreter of another project."""


@confining
@pytest.mark.parametrize("use", ["program", "argument", "PATH"])
@pytest.mark.parametrize("links", LINKED_ENVIRONMENTS.values(), ids=list(LINKED_ENVIRONMENTS))
def test_a_link_in_a_checkout_shows_no_other_project(tmp_path: Path, links: dict[str, str], use: str) -> None:
    other, tree = tmp_path / "other", tmp_path / "tree"
    for name, text in {"lib/python3.11/os.py": "", "token": "a secret", "bin/python": "#!/bin/sh\ncat $1\n"}.items():
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(text)
    (other / "bin" / "python").chmod(0o755)
    for name, target in links.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(target.format(other=other))
    python, token = str(tree / ".venv" / "bin" / "python"), str(other / "token")
    command = {"program": (python, token), "argument": ("/usr/bin/env", python, token), "PATH": ("/bin/cat", token)}
    changes = {"command": command[use], "readable": (tree,), "env": {"PATH": f"{Path(python).parent}:/usr/bin"}}
    if use == "program":
        with pytest.raises(EngineError, match="does not show to an environment inside the checkout"):
            run(tmp_path / "run", "", **changes)
    else:
        assert "a secret" not in run(tmp_path / "run", "", **changes).log_tail
    assert (
        run(tmp_path / "run", "", SANDBOX.model_copy(update={"read": [str(other)]}), **changes).log_tail == "a secret"
    )


@confining
@pytest.mark.parametrize("links", [{"bin/python": "bin/python3"}, {"bin": "bin"}, {"": ""}], ids=str)
def test_an_environment_in_the_checkout_may_use_the_interpreter_of_regbot(
    tmp_path: Path, links: dict[str, str]
) -> None:
    for name, target in links.items():
        (tmp_path / "tree" / ".venv" / name).parent.mkdir(parents=True)
        (tmp_path / "tree" / ".venv" / name).symlink_to(Path(sys.base_prefix, target))
    python = str(tmp_path / "tree" / ".venv" / "bin" / "python3").removesuffix("3" if "bin/python" in links else "")
    command = (python, "-c", "import json; print('runs')")
    result = run(tmp_path / "run", "", command=command, readable=(tmp_path / "tree",))
    assert (result.exit_code, result.log_tail) == (0, "runs")


def test_the_home_folder_is_never_visible_as_an_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("bin/python3", "lib/python3.11/os.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert sandboxes.python_prefixes(tmp_path / "bin" / "python3") == [tmp_path]
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert sandboxes.python_prefixes(tmp_path / "bin" / "python3") == []


# ---- devices and groups


def test_only_the_selected_gpus_are_visible_and_numbered_from_zero(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "infiniband"):
        (tmp_path / name).touch()
    (tmp_path / "nvidia0").unlink()
    (tmp_path / "nvidia0").mkdir()  # cannot be opened, like a device that a scheduler's group forbids
    assert visible_devices(tmp_path, "2,1") == ({"CUDA_VISIBLE_DEVICES": "1,0"}, ["nvidiactl", "nvidia2", "nvidia3"])
    assert visible_devices(tmp_path, "") == ({"CUDA_VISIBLE_DEVICES": ""}, ["nvidiactl"])
    assert visible_devices(tmp_path, None) == ({}, ["nvidiactl", "nvidia1", "nvidia2", "nvidia3"])
    uuid = {"CUDA_VISIBLE_DEVICES": "GPU-5ebe9ecc"}
    assert visible_devices(tmp_path, "GPU-5ebe9ecc") == (uuid, ["nvidiactl", "nvidia1", "nvidia2", "nvidia3"])
    assert visible_devices(tmp_path, None, network=True)[1][:2] == ["nvidiactl", "infiniband"]


def visible_devices(folder: Path, visible: str | None, network: bool = False) -> tuple[dict[str, str], list[str]]:
    words = device_options(folder, visible, network)
    variables, devices = {}, []
    while words:
        word, first, second, *words = words
        if word == "--setenv":
            variables[first] = second
        else:
            devices.append(Path(first).name)
    return variables, devices


def test_a_group_of_another_user_is_not_divided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(OSError, match=r"^the group /other\.slice was not delegated to this user$"):
        confinement.find_delegated_group([tmp_path], "/other.slice", 2, "pids")


def test_a_delegated_group_limits_processes_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plain files stand in for the group's files; the test checks what is written to which."""
    (tmp_path / "cgroup.subtree_control").write_text("pids memory")
    monkeypatch.setattr(confinement, "_is_delegated", lambda folder, path: True)
    monkeypatch.setattr(
        confinement, "find_parent", lambda name: confinement.find_delegated_group([tmp_path], "/d", 2, name)
    )
    group = tmp_path / f"regbot-{os.getpid()}"
    group.mkdir()
    (group / "memory.swap.max").touch()
    groups = confinement.ControlGroups(64, 1.0)
    groups.join()
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written == {
        "pids.max": "64", "memory.max": str(2**30), "memory.swap.max": "0", "cgroup.procs": str(os.getpid())
    }  # fmt: skip


# ---- the proof that doctor gives


@confining
def test_doctor_proves_the_sandbox_with_a_program_that_tries_to_escape() -> None:
    succeeded = {attempt for attempt, outcome in try_escapes(SANDBOX).items() if outcome}
    assert succeeded <= ({PROCESSES} if unbounded(SANDBOX) else set())
    check = doctor.check_sandbox(SANDBOX)
    assert check.ok, check
    assert "a program in it could not read the harness, write to the harness, read a private file" in check.detail


def test_the_escape_program_succeeds_without_a_sandbox() -> None:
    outcomes = try_escapes(None)
    outcomes.pop("change the kernel's settings")  # which only root may do
    assert set(outcomes.values()) == {True}, outcomes
