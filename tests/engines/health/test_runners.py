"""The scripts of a runner, run for real: with an nvidia-smi of our own, in temporary folders, in a process space of
their own where they kill."""

import os
import re
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from support.required import lacking

ROOT = Path(__file__).resolve().parents[3]
RUNNERS = ROOT / "runners"
HEALTH, PROLOG, EPILOG = (RUNNERS / "slurm" / f"{name}.sh" for name in ("health", "prolog", "epilog"))
STRANGER = 23456
"""A user that no machine has."""


class Machine:
    """Tools that say what a test wants, and folders in place of the node's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        for name in ("bin", "scratch", "shm"):
            (folder / name).mkdir(parents=True)
        (folder / "kernel.log").write_text("")
        (folder / "uptime").write_text("100000.00 1.0\n")
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin:/usr/sbin:/sbin",
            "SLURMD_NODENAME": "gpu07",
            "SLURM_JOB_ID": "42",
            "REGBOT_SCRATCH": str(folder / "scratch"),
            "REGBOT_SCRATCH_MB": "1",
            "REGBOT_SHM": str(folder / "shm"),
            "REGBOT_SHM_PCT": "0",
            "REGBOT_KERNEL_LOG": str(folder / "kernel.log"),
            "REGBOT_UPTIME": str(folder / "uptime"),
            "REGBOT_SLURM_CONF": str(folder / "regbot-slurm.conf"),
        }
        self.tool("scontrol", 'printf "%s\\n" "$@" >"$(dirname "$0")/../scontrol.said"')
        self.tool("logger", ":")

    def tool(self, name: str, body: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def gpus(self, rows: str, apps: str = "", code: int = 0) -> None:
        """An nvidia-smi that lists ``rows`` (index, uncorrected errors) and ``apps``, and notes what it is told."""
        (self.folder / "rows").write_text(rows)
        (self.folder / "apps").write_text(apps)
        self.tool(
            "nvidia-smi",
            f'echo "$*" >>{self.folder}/nvidia-smi.said\n'
            f'case "$*" in *query-compute-apps*) cat {self.folder}/apps ;; *ecc.mode*) echo Enabled ;; '
            f"*query-gpu*) cat {self.folder}/rows ;; esac\nexit {code}",
        )

    def run(self, *command: object, **env: str) -> "subprocess.CompletedProcess[str]":
        words = [str(word) for word in command]
        return subprocess.run(words, env={**self.env, **env}, capture_output=True, text=True, check=False, timeout=60)

    def refused(self, **env: str) -> str:
        """Why the node is not fit; '' where it is."""
        done = self.run(HEALTH, **env)
        assert done.stderr == ""
        assert done.returncode == (1 if done.stdout else 0)
        return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_healthy_node_takes_the_job(machine: Machine) -> None:
    machine.gpus("0, 0\n1, [N/A]\n", apps="77, nvidia-cuda-mps-server\n")
    assert machine.refused(REGBOT_GPUS="2") == ""
    assert machine.run(PROLOG).returncode == 0
    assert not (machine.folder / "scontrol.said").exists()


@pytest.mark.parametrize(
    ("rows", "apps", "code", "message"),
    [
        ("0, 0\n", "", 0, "1 GPUs answer, and this node must have 2\n"),
        ("0, 0\n1, 3\n", "", 0, "uncorrected memory errors: GPU 1: 3\n"),
        ("Unable to determine the device handle\n", "", 6, "the GPUs do not answer: Unable to determine the device"),
        (
            "0, 0\n1, 0\n",
            "311, /usr/bin/python\n",
            0,
            "processes of an earlier job are on the GPUs: 311, /usr/bin/python",
        ),
    ],
)
def test_faulty_gpus_refuse_the_node(rows: str, apps: str, code: int, message: str, machine: Machine) -> None:
    machine.gpus(rows, apps, code)
    assert machine.refused(REGBOT_GPUS="2").startswith(message)


XID = "[{at}] NVRM: Xid (PCI:0000:1b:00): {number}, pid=1234, GPU has fallen off the bus.\n"


def test_driver_errors_refuse_the_node_and_application_errors_do_not(machine: Machine) -> None:
    machine.gpus("0, 0\n")
    log = machine.folder / "kernel.log"
    log.write_text("".join(XID.format(at="99000.123456", number=n) for n in (13, 31, 43, 154)) + "[1.0] usb 1-1: Xid\n")
    assert machine.refused() == ""
    log.write_text(log.read_text() + XID.format(at="99000.1", number=79) * 2 + XID.format(at="   99500.1", number=48))
    assert machine.refused() == "the GPU driver reported Xid 79 48\n"
    log.write_text(XID.format(at="5000.1", number=79))
    assert machine.refused() == "", "errors older than a day no longer count"
    assert machine.refused(REGBOT_XID_HOURS="48") == "the GPU driver reported Xid 79\n"


def test_a_full_scratch_disk_or_shared_memory_refuses_the_node(machine: Machine) -> None:
    machine.gpus("0, 0\n")
    assert re.match(
        r"\S+/scratch has \d+ MB left, 999999999 are needed\n", machine.refused(REGBOT_SCRATCH_MB="999999999")
    )
    assert "% left, 101% are needed\n" in machine.refused(REGBOT_SHM_PCT="101")
    assert machine.refused(REGBOT_SCRATCH="/nowhere") == "/nowhere cannot be seen\n"


def test_the_reason_for_slurm_has_no_character_that_a_shell_reads(machine: Machine) -> None:
    machine.gpus('the "driver"; $(reboot) `x`', code=1)
    assert machine.run(PROLOG).returncode == 1
    arguments = (machine.folder / "scontrol.said").read_text().splitlines()
    assert arguments[:3] == ["update", "NodeName=gpu07", "State=DRAIN"]
    assert arguments[3] == "Reason=regbot: the GPUs do not answer: the driver; (reboot) x"


def test_jobs_of_other_partitions_are_let_through_and_the_settings_are_read_from_a_file(machine: Machine) -> None:
    machine.gpus("0, 0\n")
    (machine.folder / "regbot-slurm.conf").write_text("REGBOT_PARTITION=bench\nREGBOT_GPUS=8\n")
    assert machine.run(PROLOG, SLURM_JOB_PARTITION="people").returncode == 0
    assert machine.run(PROLOG, SLURM_JOB_PARTITION="bench").returncode == 1
    assert machine.run(EPILOG, SLURM_JOB_PARTITION="people").returncode == 0


def in_own_space(machine: Machine, script: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """A script as root, in a space of its own: nothing outside of it can be killed."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        lacking("SANDBOX", "no bubblewrap here")
    if os.getuid() != 0:
        pytest.skip("two users are needed, which only root can be")
    command = [bwrap, "--dev-bind", "/", "/", "--unshare-pid", "--unshare-ipc", "--proc", "/proc", "--die-with-parent"]
    probe = subprocess.run([*command, "--", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no process space of one's own can be had here: {probe.stderr.strip()}")
    return machine.run(*command, "--", "/bin/sh", "-c", script, **env)


LEAVE_BEHIND = """
set -u
as_stranger() {{ setpriv --reuid={uid} --clear-groups "$@"; }}
as_stranger sh -c 'setsid sleep 1000 & setsid sh -c "while :; do sleep 1000 & wait; done" &' >/dev/null 2>&1
as_stranger sh -c 'trap "" TERM HUP INT; sleep 1000' >/dev/null 2>&1 &
sleep 1000 & ours=$!
as_stranger ipcmk -M 4096 >/dev/null
as_stranger ipcmk -Q >/dev/null
as_stranger ipcmk -S 1 >/dev/null
sleep 0.3
echo "before $(ps -u {uid} -o pid= | wc -l) $(ipcs | grep -c {uid})"
{command}
echo "code $?"
echo "after $(ps -u {uid} -o pid= | wc -l) $(ipcs | grep -c {uid})"
kill -0 $ours && echo "ours lives"
"""


def test_the_clean_up_leaves_no_process_file_or_shared_memory_of_the_job(machine: Machine) -> None:
    machine.gpus("0, 0\n")
    work, tmp, shm = (machine.folder / name for name in ("work", "tmp", "shm"))
    (work / "runner" / "deep").mkdir(parents=True)
    (work / "runner" / "deep" / "file").write_text("x")
    (work / "link").symlink_to(ROOT)
    tmp.mkdir()
    for folder in (tmp, shm):
        (folder / "theirs").mkdir()
        (folder / "theirs" / "file").write_text("x")
        (folder / "ours").write_text("x")
        if os.getuid() == 0:
            os.chown(folder / "theirs", STRANGER, STRANGER)
            os.chown(folder / "theirs" / "file", STRANGER, STRANGER)
    done = in_own_space(
        machine,
        LEAVE_BEHIND.format(uid=STRANGER, command=RUNNERS / "clean.sh"),
        REGBOT_RUNNER_USER=str(STRANGER),
        REGBOT_RUNNER_WORK=str(work),
        REGBOT_RUNNER_TMP=str(tmp),
        REGBOT_RUNNER_SHM=str(shm),
    )
    before, code, after, ours = done.stdout.splitlines()
    assert re.fullmatch(r"before [3-9] 3", before), done
    assert (code, after, ours) == ("code 0", "after 0 0", "ours lives"), done
    assert list(work.iterdir()) == []
    assert (ROOT / "pyproject.toml").exists(), "a link is removed, not followed"
    assert [path.name for folder in (tmp, shm) for path in folder.iterdir()] == ["ours", "ours"]
    assert "-rgc" in (machine.folder / "nvidia-smi.said").read_text()


@pytest.mark.parametrize("user", ["0", "root", "no-such-user", ""])
def test_the_clean_up_refuses_users_whose_processes_are_not_its_to_end(user: str, machine: Machine) -> None:
    machine.gpus("0, 0\n")
    work = machine.folder / "work"
    work.mkdir()
    (work / "file").write_text("x")
    done = machine.run(RUNNERS / "clean.sh", REGBOT_RUNNER_USER=user or "/", REGBOT_RUNNER_WORK=str(work))
    assert done.returncode == 1
    assert re.search("not ended|there is no user", done.stderr)
    assert (work / "file").exists()


@pytest.mark.parametrize("folder", ["/", "", "relative"])
def test_no_folder_is_emptied_that_cannot_be_meant(folder: str, tmp_path: Path) -> None:
    (tmp_path / "relative").mkdir()
    (tmp_path / "relative" / "file").write_text("x")
    script = f'. "{RUNNERS}/sweep.sh"; find() {{ echo WOULD DELETE; }}; empty "{folder}"'
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "WOULD DELETE" not in done.stdout


def test_clocks_are_locked(machine: Machine) -> None:
    machine.gpus("0, 0\n")
    governor = machine.folder / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n")
    machine.tool("cpupower", "exit 1")
    env = {"REGBOT_SYS": str(machine.folder / "sys"), "REGBOT_GPU_MHZ": "1500,1500"}
    done = machine.run(RUNNERS / "clocks.sh", "set", **env)
    assert (done.returncode, done.stderr) == (0, "")
    assert governor.read_text() == "performance\n"
    assert (machine.folder / "nvidia-smi.said").read_text().splitlines()[:2] == ["-pm 1", "-lgc 1500,1500"]


def prepared(machine: Machine, **env: str) -> dict[str, str]:
    """A runner that notes what it is given, ready for a job."""
    machine.gpus("0, 0\n")
    home, work, run = (machine.folder / name for name in ("actions-runner", "work", "run"))
    for folder in (home, work, run):
        folder.mkdir()
    (home / "run.sh").write_text(f'#!/bin/sh\necho "$PWD $*" >>{machine.folder}/jobs\nsleep "${{JOB_S:-0}}"\n')
    (home / "run.sh").chmod(0o755)
    machine.tool("jit-helper", 'echo "config-of-$1"')
    return {
        "REGBOT_JIT_HELPER": "jit-helper bench",
        "REGBOT_RUNNER_HOME": str(home),
        "REGBOT_RUNNER_WORK": str(work),
        "REGBOT_RUNNER_RUN": str(run),
        "REGBOT_RUNNER_USER": str(os.getuid()),
        **env,
    }


def test_a_runner_does_one_job_in_a_copy_of_its_own_with_a_configuration_that_serves_once(machine: Machine) -> None:
    env, script = prepared(machine), RUNNERS / "run-one-job.sh"
    assert machine.run(script, "prepare", **env).returncode == 0
    config = machine.folder / "run" / "jitconfig"
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert machine.run(script, "run", **env).returncode == 0
    work = machine.folder / "work" / "runner"
    assert (machine.folder / "jobs").read_text() == f"{work} --jitconfig config-of-bench\n"
    assert not config.exists()
    done = machine.run(script, "run", **env)
    assert done.returncode == 1
    assert "there is no configuration" in done.stderr


def test_a_second_job_is_refused_while_one_runs(machine: Machine) -> None:
    env, script = prepared(machine, JOB_S="5"), RUNNERS / "run-one-job.sh"
    assert machine.run(script, "prepare", **env).returncode == 0
    with subprocess.Popen([script, "run"], env={**machine.env, **env}) as first:
        until = time.monotonic() + 10
        while not (machine.folder / "jobs").exists() and time.monotonic() < until:
            time.sleep(0.02)
        done = machine.run(script, "run", **env)
        first.kill()
    assert done.returncode == 75
    assert "another job runs on this node" in done.stderr
    assert len((machine.folder / "jobs").read_text().splitlines()) == 1


def test_the_set_up_can_be_repeated_and_gives_each_folder_its_owner(tmp_path: Path) -> None:
    if os.getuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("users are made by root, with useradd")
    (tmp_path / "etc").mkdir()
    for name, line in (("passwd", "root:x:0:0::/root:/bin/sh"), ("group", "root:x:0:"), ("shadow", "root:*:1::::::")):
        (tmp_path / "etc" / name).write_text(f"{line}\n")

    def set_up() -> str:
        command = [str(RUNNERS / "setup.sh"), "--root", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "regbot: user regbot-runner\n" in set_up()
    assert set_up() == "", "what is right is left"
    users = {line.split(":")[0]: int(line.split(":")[2]) for line in (tmp_path / "etc/passwd").read_text().splitlines()}
    for path, user, mode in (
        ("opt/regbot/runners/clean.sh", "root", 0o755),
        ("var/lib/regbot/results", "regbot", 0o750),
        ("var/lib/regbot-runner/work", "regbot-runner", 0o700),
        ("etc/regbot-runner.conf", "root", 0o600),
    ):
        found = (tmp_path / path).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (users[user], mode), path


def test_the_xids_of_applications_are_those_of_the_health_monitor() -> None:
    from regbot.engines.health.causes import APPLICATION_XIDS, FOLLOW_UP_XIDS

    listed = re.search(r'split\("([\d ]+)", known\)', HEALTH.read_text())
    assert listed is not None
    assert set(map(int, listed.group(1).split())) == APPLICATION_XIDS | FOLLOW_UP_XIDS
