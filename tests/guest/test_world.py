"""A real rank runs on the kind of device that was requested, or the run is refused."""

import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from regbot_guest.contract import ContractError
from regbot_guest.world import choose_device, join_ranks, open_world
from support.guest_runs import MIXTRAL, TINY, answer, ask, run_guest


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_run_for_a_gpu_that_torch_does_not_see_is_refused(tmp_path: Path) -> None:
    timed = {"mode": "timed", "steps": 2, "warmup": 1, "device": "cuda"}
    assert run_guest(ask(tmp_path, "timed", MIXTRAL, geometry=TINY, world=1, ep=1, **timed)).returncode == 10
    record = answer(tmp_path, "timed")
    assert record["refusal"]["kind"] == "device"
    is_cpu_build = torch.version.cuda is None and torch.version.hip is None
    reason = f": torch {torch.__version__} is a build for CPUs" if is_cpu_build else "; 'nvidia-smi' on this node"
    assert record["refusal"]["message"].startswith(f"the run needs 1 GPUs on this node, but torch sees 0{reason}")
    assert "steps" not in record


@pytest.fixture
def four_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.version, "cuda", "12.8")


def be_rank_1_of(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.usefixtures("four_visible_gpus")
def test_hidden_gpus_are_refused_and_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank_1_of(8, monkeypatch)
    with pytest.raises(ContractError) as refused:
        choose_device(8, "cuda")
    assert refused.value.kind == "device"
    assert "8 GPUs on this node, but torch sees 4: CUDA_VISIBLE_DEVICES='0,1,2,3' hides the others" in str(
        refused.value
    )


def test_ranks_that_share_a_gpu_exchange_through_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL refuses two ranks on one GPU."""
    backends: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: backends.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    for share_gpu in (True, False):
        with join_ranks(torch.device("cuda", 0), 0.0, share_gpu):
            pass
    assert backends == ["gloo", "nccl"]


def test_the_groups_of_a_run_wait_longer_than_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or torch would end a hung rank before regbot reports the hang."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    with open_world(1, 1, fake=False, limit_s=7200.0):
        groups = list(dist.distributed_c10d._world.pg_map)
        timeouts = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
    assert len(timeouts) == 4, "the group of all ranks, and one group per axis"
    assert min(timeouts) > timedelta(seconds=7200)
