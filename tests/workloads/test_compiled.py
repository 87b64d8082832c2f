"""A guest that leaves a compiled program: what the trusted side makes of it, and every claim that it does not believe.

The guest is a script that answers as MaxText's would; it is started, bounded and read like any other. The real one is
in ``frameworks/test_maxtext.py``.
"""

import sys
from pathlib import Path

import pytest

from regbot.engines import LocalEngine
from regbot.records.config import Workload
from regbot.records.run import Run
from regbot.workloads.guest import Checkout, Limits, Scratch, trace
from regbot.workloads.shapes import load_shape
from regbot.workloads.task import Task, single_task
from regbot_guest.contract import ContractError
from regbot_guest.frameworks.maxtext_config import compile_arguments, record_config
from regbot_guest.request import Request
from support.guest_runs import make_request
from support.layers import ARM

LIMITS = Limits(max_output_bytes=64 * 1024, max_record_bytes=2**18)

SUM = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}
"""
PROGRAM = f"""HloModule jit_train_step, is_scheduled=true, num_partitions=4
{SUM}
ENTRY %main (x: f32[8,16]) -> f32[16,16] {{
  %x = f32[8,16]{{1,0}} parameter(0)
  %sent = f32[8,16]{{1,0}} all-to-all(%x), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, dimensions={{0}}, metadata={{op_name="jit(train_step)/jvp()/dispatch/dot_general"}}
  %whole = f32[16,16]{{1,0}} all-gather(%sent), channel_id=2, replica_groups={{{{0,2}},{{1,3}}}}, dimensions={{0}}, use_global_device_ids=true
  ROOT %total = f32[16,16]{{1,0}} all-reduce(%whole), channel_id=3, replica_groups=[1,4]<=[4], use_global_device_ids=true, to_apply=%sum
}}
"""  # noqa: E501
PLANTED = f"""HloModule jit_regbot_planted, is_scheduled=true, num_partitions=4
{SUM}
%body (state: (s32[], f32[4,4])) -> (s32[], f32[4,4]) {{
  %state = (s32[], f32[4,4]{{1,0}}) parameter(0)
  %round = s32[] get-tuple-element(%state), index=0
  %x = f32[4,4]{{1,0}} get-tuple-element(%state), index=1
  %psum = f32[4,4]{{1,0}} all-reduce(%x), channel_id=3, replica_groups={{{{0,1,2,3}}}}, use_global_device_ids=true, to_apply=%sum
  ROOT %next = (s32[], f32[4,4]{{1,0}}) tuple(%round, %psum)
}}

%more (state: (s32[], f32[4,4])) -> pred[] {{
  %state = (s32[], f32[4,4]{{1,0}}) parameter(0)
  %round = s32[] get-tuple-element(%state), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%round, %three), direction=LT
}}

ENTRY %main (x: f32[4,4]) -> f32[16,4] {{
  %x = f32[4,4]{{1,0}} parameter(0)
  %zero = s32[] constant(0)
  %begin = (s32[], f32[4,4]{{1,0}}) tuple(%zero, %x)
  %loop = (s32[], f32[4,4]{{1,0}}) while(%begin), condition=%more, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
  %sent = f32[4,4]{{1,0}} all-to-all(%x), channel_id=1, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
  ROOT %whole = f32[16,4]{{1,0}} all-gather(%sent), channel_id=2, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, use_global_device_ids=true
}}
"""  # noqa: E501

ANSWER = """#!{python}
import gzip, json, os, pathlib, sys
request = json.load(open(sys.argv[-1]))
folder = pathlib.Path(request["record"]).parent
program, planted = {program!r}, {planted!r}
record = {{"schema": "regbot/raw-run@1", "request": request["request"], "workload": request["workload"],
          "variant": request["variant"], "rank": 0}}
claim = {{"program": "program.hlo.txt", "planted": "planted.hlo.txt", "target": "cpu",
         "mesh": [{{"name": "fsdp", "size": 2}}, {{"name": "ep", "size": 2}}],
         "config": {{"capacity_factor": 1.25}}, "software": {{"jax": "0"}}, "patches": ["hardware=cpu"]}}
record["compiled"] = claim
file = folder / "program.hlo.txt"
file.write_text(program)
(folder / "planted.hlo.txt").write_text(planted)
{change}
pathlib.Path(request["record"]).write_text(json.dumps(record))
"""


def compiled_task(python: str) -> Task:
    """Mixtral's cpu variant on four ranks, two of them expert-parallel."""
    workload = Workload(adapter="maxtext", shapes=["mixtral-8x7b"], variant="cpu", python=python, timeout_min=1.0)
    return single_task("maxtext", workload, load_shape("mixtral-8x7b"), "ep", world=4, ep=2)


def fake_python(folder: Path, change: str, program: str = PROGRAM, planted: str = PLANTED) -> str:
    """An interpreter that does not run the guest but answers at once, its answer spoilt by ``change``."""
    script = folder / "fake-python"
    script.write_text(ANSWER.format(python=sys.executable, program=program, planted=planted, change=change))
    script.chmod(0o755)
    return str(script)


def run(tmp_path: Path, change: str = "", program: str = PROGRAM, planted: str = PLANTED) -> Run:
    root = tmp_path / "checkout"
    root.mkdir()
    task = compiled_task(fake_python(tmp_path, change, program, planted))
    return trace(task, Checkout(ARM, root), LocalEngine(), Scratch(tmp_path / "scratch", LIMITS))


def test_a_program_becomes_a_ledger_with_the_axes_of_its_mesh(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert (found.outcome, found.reason) == ("ok", "")
    ledger = found.ledger
    assert ledger is not None
    assert {(e.kind, e.axis, e.group_size, e.count, e.bytes) for e in ledger.entries} == {
        ("all_to_all", "ep", 2, 1, 8 * 16 * 4),
        ("all_gather", "fsdp", 2, 1, 16 * 16 * 4),
        ("all_reduce", "fsdp+ep", 4, 1, 16 * 16 * 4),
    }
    assert {name: axis.ranks for name, axis in ledger.axes.items()} == {
        "ep": [0, 1],
        "fsdp": [0, 2],
        "fsdp+ep": [0, 1, 2, 3],
    }
    assert (ledger.workload, ledger.variant, ledger.world_size) == ("mixtral-8x7b@1/ep-dp", "cpu", 4)
    assert (ledger.scope, ledger.steps, ledger.source) == ("step", 1, "hlo:cpu")
    assert (ledger.config, ledger.software, ledger.patches) == (
        {"capacity_factor": 1.25},
        {"jax": "0"},
        ["hardware=cpu"],
    )
    assert ledger.fingerprint is not None
    assert ledger.liveness is not None
    assert (ledger.liveness.planted, ledger.liveness.seen, ledger.liveness.proven) == (5, 5, True)


@pytest.mark.parametrize(
    ("spoilt", "seen"),
    [(PLANTED.replace(" all-to-all(", " exchange-of-a-later-xla("), 4), (PLANTED.replace('"n":"3"', '"n":"6"'), 2)],
    ids=["a kind that is not seen", "a loop that is counted twice"],
)
def test_a_reader_that_miscounts_what_was_planted_proves_nothing(tmp_path: Path, spoilt: str, seen: int) -> None:
    assert spoilt != PLANTED
    ledger = run(tmp_path, planted=spoilt).ledger
    assert ledger is not None
    assert ledger.liveness is not None
    assert (ledger.liveness.seen, ledger.liveness.proven) == (seen, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('file.rename(folder.parent / "out.txt"); claim["program"] = "../out.txt"', "compiled.program: String should"),
        ('file.unlink(); file.symlink_to("/etc/passwd")', "program.hlo.txt: is a link"),
        ('file.write_text(program + "\\n" * 300_000)', "bytes, more than the 262,144 of local.max_record_mb"),
        ('file.write_bytes(gzip.compress((program + "\\n" * 300_000).encode()))', "contains more than 262,144 bytes"),
        ("file.unlink(); os.link(sys.argv[-1], file)", "program.hlo.txt: is a link"),
        ("file.write_text(program[:-30])", "program.hlo.txt: ends in the middle of the computation main"),
        (
            'file.write_text(program.replace("num_partitions=4", "num_partitions=2"))',
            "is of rank 0 of 2, but rank 0 of 4",
        ),
        ('claim["mesh"][0]["size"] = 4', "the record's mesh is {'fsdp': 4, 'ep': 2}, but 4 ranks"),
        ('claim["mesh"] = [{"name": "ep", "size": 4}]', "expert-parallel groups of 2 were requested"),
        (
            (
                'record["ledger"] = {"schema": "regbot/ledger@1", "source": "hlo:cpu", "scope": "step", "steps": 1, '
                '"entries": [], "world_size": 4, "workload": request["workload"], "variant": request["variant"]}'
            ),
            "regbot counts in the compiled program itself",
        ),
        ('del record["compiled"]', "neither a ledger nor a reason"),
    ],
)
def test_a_claim_that_does_not_hold_is_not_used(tmp_path: Path, change: str, reason: str) -> None:
    found = run(tmp_path, change)
    assert found.outcome == "bad_record", found.reason
    assert reason in found.reason
    assert str(tmp_path) not in found.reason
    assert found.ledger is None


def keys_of(asked: Request) -> dict[str, str]:
    _, base, *rest = compile_arguments(asked, Path("/maxtext"), Path("/scratch"))
    return {"": base, **dict(argument.split("=", 1) for argument in rest)}


@pytest.mark.parametrize(
    ("key", "instead"),
    [("base_emb_dim", "another shape or variant"), ("model_name", "'recipe'"), ("attention", "regbot sets it")],
)
def test_a_key_that_is_fixed_is_refused_with_what_to_use(key: str, instead: str) -> None:
    with pytest.raises(ContractError, match=f"config.{key}: fixed by this workload; use .*{instead}") as refusal:
        keys_of(make_request(config={key: 1}))
    assert refusal.value.kind == "config"


def test_the_resolved_configuration_is_flat_and_names_no_place() -> None:
    resolved = {
        "remat_policy": "full",
        "learning_rate": 3e-5,
        "tensorboard_dir": "/home/me/out",
        "hf_access_token": "secret",
        "run_name": "me-2026",
        "mesh_axes": ["fsdp", "expert"],
        "none": None,
    }
    assert record_config(resolved) == {
        "remat_policy": "full",
        "learning_rate": 3e-5,
        "mesh_axes": "fsdp,expert",
        "none": None,
    }
