"""What a private Slurm is told: slurm.conf and gres.conf of pseudo-nodes that all are this machine, for one user."""

import os
import pwd
import socket
from collections.abc import Mapping
from pathlib import Path

TYPE = "h200"
"""Of the GPUs that are not there."""
ADDRESS = "127.0.0.1"
MEMORY_MIB = 8000
SETTINGS = {
    "AuthType": "auth/munge",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "SwitchType": "switch/none",
    "MpiDefault": "none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core",
    "SchedulerParameters": "bf_interval=1,sched_interval=1,batch_sched_delay=0",
    "AccountingStorageType": "accounting_storage/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SlurmdParameters": "config_overrides",  # so that a node may have more CPUs than the machine
    "ReturnToService": "1",  # a dead node that comes back is used again, one that an operator took is not
    # A dead node is down, and its jobs end as NODE_FAIL, after 6 to 12 s: silent for so long, and asked for so long.
    "SlurmdTimeout": "4",
    "MessageTimeout": "3",
    "KillWait": "1",
    "OverTimeLimit": "0",
    "MinJobAge": "60",  # ended jobs are forgotten after that
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
}
PARTITIONS = {
    "bench": "Nodes=ALL Default=YES MaxTime=60 PriorityTier=1",
    "short": "Nodes=n1 MaxTime=1 PriorityTier=1",
    "spare": "Nodes=ALL MaxTime=60 PriorityTier=1 PreemptMode=CANCEL",
    "urgent": "Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF",
}
"""Jobs in ``urgent`` put those of ``bench`` back into the queue, and cancel those of ``spare``."""


def slurm_conf(
    folder: Path,
    port: int,
    nodes: Mapping[str, int],
    cpus: int,
    gpus: int,
    settings: Mapping[str, str],
) -> str:
    """The text of slurm.conf for a controller at ``port`` and ``nodes``, each at its port. ``settings`` replace
    those of SETTINGS, or are added."""
    user, host = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname().split(".")[0]
    lines = {
        "ClusterName": "private",
        "SlurmctldHost": f"{host}({ADDRESS})",
        "SlurmUser": user,
        "SlurmdUser": user,
        "AuthInfo": f"socket={folder}/run/munge.sock",
        "SlurmctldPort": str(port),
        "SlurmctldPidFile": f"{folder}/run/slurmctld.pid",
        "SlurmctldLogFile": f"{folder}/log/slurmctld.log",
        "SlurmdPidFile": f"{folder}/run/%n.pid",
        "SlurmdLogFile": f"{folder}/log/%n.log",
        "SlurmdSpoolDir": f"{folder}/spool/%n",
        "StateSaveLocation": f"{folder}/spool/state",
        **({"GresTypes": "gpu"} if gpus else {}),
        **SETTINGS,
        **settings,
    }
    text = [f"{name}={value}" for name, value in lines.items()]
    has = f"CPUs={cpus} RealMemory={MEMORY_MIB}" + (f" Gres=gpu:{TYPE}:{gpus}" if gpus else "")
    for name, at in nodes.items():
        text.append(f"NodeName={name} NodeHostname={host} NodeAddr={ADDRESS} Port={at} {has}")
    text += [f"PartitionName={name} State=UP {rest}" for name, rest in PARTITIONS.items()]
    return "\n".join([*text, ""])


def gres_conf(folder: Path, gpus: int) -> str:
    """The text of gres.conf: which files are the GPUs of every node."""
    return f"Name=gpu Type={TYPE} File={gpu(folder, '[0-' + str(gpus - 1) + ']')}\n" if gpus else ""


def gpu(folder: Path, index: int | str) -> Path:
    """The file of a GPU that is not there. Slurm wants a device, to which a link is enough, and takes the index that
    CUDA_VISIBLE_DEVICES gets from the end of the name."""
    return folder / f"gpu/{TYPE}-{index}"
