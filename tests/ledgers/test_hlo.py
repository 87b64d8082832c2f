"""The HLO reader: what it counts in each backend's text, how it weighs loops, and what it refuses."""

import re
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path

import pytest

from regbot.ledgers.readers import ReadError, Source, hlo
from regbot.ledgers.readers.hlo.collectives import find_module, find_phase
from regbot.ledgers.readers.hlo.groups import Devices, ReplicaGroup, find_group
from regbot.ledgers.readers.hlo.text import parse_attributes, parse_tensors
from regbot.records.ledger import Entry, Ledger

TEXTS = Path(__file__).parents[1] / "hlo"
EIGHT = Devices(1, 8)


def read(path: Path) -> Ledger:
    return hlo.read(Source(path))


def read_text(tmp_path: Path, text: str) -> Ledger:
    path = tmp_path / "module.txt"
    path.write_text(text)
    return read(path)


def text_of(name: str) -> str:
    return (TEXTS / f"{name}.hlo.txt").read_text()


def totals(ledger: Ledger) -> dict[str, tuple[int, int, int]]:
    """Executions, lines, bytes by kind."""
    sums: dict[str, tuple[int, int, int]] = {}
    for entry in ledger.entries:
        count, lines, size = sums.get(entry.kind, (0, 0, 0))
        sums[entry.kind] = count + entry.count, lines + (entry.static_count or 0), size + entry.bytes
    return sums


def only(entries: Iterable[Entry], **fields: object) -> Entry:
    matches = [entry for entry in entries if all(getattr(entry, field) == value for field, value in fields.items())]
    assert len(matches) == 1, f"{len(matches)} entries with {fields}"
    return matches[0]


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("cpu_jax0.12", "hlo:cpu", "all_gather 30/10, all_reduce 4/4, all_to_all 30/12, permute 1/1"),
        ("cpu_jax0.10", "hlo:cpu", "all_gather 30/10, all_reduce 4/4, all_to_all 30/12, permute 1/1"),
        ("gpu_jax0.10", "hlo:gpu", "all_gather 18/6, all_reduce 2/2, all_to_all 30/12, permute 1/1"),
        ("gpu_dump_jax0.10", "hlo:gpu", "all_gather 30/10, all_reduce 2/2, all_to_all 30/12, permute 1/1"),
        ("tpu_jax0.12", "hlo:tpu", "all_gather 21/7, all_reduce 3/3, all_to_all 30/12, permute 1/1"),
        ("gpu_fsdp_dump_jax0.10", "hlo:gpu", "all_gather 16/4, all_reduce 1/1, all_to_all 1/1, reduce_scatter 4/1"),
        ("tpu_fsdp_jax0.12", "hlo:tpu", "all_gather 4/1, all_reduce 1/1, all_to_all 1/1, permute 180/25"),
    ],
)
def test_what_xla_wrote_is_counted_on_every_backend(name: str, source: str, expected: str) -> None:
    """Executions and lines of each kind."""
    ledger = read(TEXTS / "real" / f"{name}.hlo.txt.gz")
    assert (
        ", ".join(f"{kind} {count}/{lines}" for kind, (count, lines, _) in sorted(totals(ledger).items())) == expected
    )
    assert ledger.source == source
    assert not any("trip count" in guess for guess in ledger.guesses), "every trip count is known"


def test_every_kind_is_counted_with_the_bytes_of_a_ledger() -> None:
    assert totals(read(TEXTS / "cpu_scan.hlo.txt")) == {
        "all_to_all": (3, 1, 1536),
        "all_gather": (2, 2, 16 * 16 * 4 + 8 * 4),
        "all_reduce": (3, 3, 2 * 512 + 3 * 8 * 4 + 4 * 2),
        "permute": (1, 1, 512),
    }


FRAMES = """FileNames
1 "/c/site-packages/flax/linen.py"
2 "/c/train/moe.py"
3 "/c/train.py"

FunctionNames
1 "Dense.__call__"
2 "MoE.__call__"
3 "main"

FileLocations
1 {file_name_id=1 function_name_id=1 line=9 end_line=9 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=41 end_line=41 column=4 end_column=9}
3 {file_name_id=3 function_name_id=3 line=7 end_line=7 column=4 end_column=9}

StackFrames
1 {file_location_id=3 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=1 parent_frame_id=2}
"""


@pytest.mark.parametrize(
    ("metadata", "line", "callers"),
    [
        ("stack_frame_id=3", "/c/train/moe.py:41", ["/c/train.py:7"]),
        ('source_file="/c/train/moe.py" source_line=40', "/c/train/moe.py:40", []),
        ("stack_frame_id=9", "", []),
        ('source_file="/c/tr:ain.py" source_line=40', "", []),
    ],
)
def test_a_collective_has_the_line_of_the_innermost_frame_outside_of_packages(
    tmp_path: Path, metadata: str, line: str, callers: list[str]
) -> None:
    text = re.sub(r"FileNames\n.*?\n(?=%sum)", lambda _: f"{FRAMES}\n", text_of("cpu_scan"), flags=re.DOTALL)
    ledger = read_text(tmp_path, text.replace("stack_frame_id=1", metadata))
    exchange = only(ledger.entries, kind="all_to_all")
    assert exchange.line == line
    assert ledger.frames[line].callers == callers if line else not ledger.frames
    relative = ledger.relative_to("/c/train")
    assert only(relative.entries, kind="all_to_all").line == line.removeprefix("/c/train/")
    assert set(relative.frames) <= {"moe.py:40", "moe.py:41"}


def test_recomputation_is_backward_and_the_optimizer_is_recognised_by_its_name() -> None:
    ledger = read(TEXTS / "cpu_scan.hlo.txt")
    assert only(ledger.entries, axis="[0,4]").phase == "backward"
    assert only(ledger.entries, dtype="mixed").phase == "optimizer"
    assert only(ledger.entries, kind="permute").phase == "unknown"


def test_the_conditional_branch_that_moves_most_is_counted_and_reported() -> None:
    ledger = read(TEXTS / "cpu_scan.hlo.txt")
    assert only(ledger.entries, axis="[0,1]", kind="all_reduce").count == 2
    assert any(
        "1 conditional (jit(step)/cond) with branches that communicate differently" in guess for guess in ledger.guesses
    )


def test_starts_are_counted_and_dones_and_updates_are_not() -> None:
    assert totals(read(TEXTS / "gpu_async.hlo.txt")) == {
        "all_to_all": (2, 2, 256 + 256),
        "reduce_scatter": (2, 2, 2 * 256 + 256),
        "all_gather": (1, 1, 256 + 64),
        "all_reduce": (1, 1, 256 + 4),
        "permute": (1, 1, 256),
    }


def test_a_group_that_has_a_name_somewhere_has_it_everywhere() -> None:
    ledger = read(TEXTS / "real" / "cpu_jax0.12.hlo.txt.gz")
    assert {axis: group.ranks for axis, group in ledger.axes.items()} == {
        "data": [0, 4],
        "expert": [0, 1, 2, 3],
        "[0-7]": list(range(8)),
    }


def test_an_all_reduce_scatter_computation_is_a_reduce_scatter() -> None:
    ledger = read(TEXTS / "tpu_unrolled.hlo.txt")
    scatter = only(ledger.entries, kind="reduce_scatter")
    assert (scatter.count, scatter.bytes, scatter.phase) == (1, 256, "backward")
    assert "all_reduce" not in totals(ledger)


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [("constant(6)", "constant(7)", 4), ("constant(0)", "constant(4)", 1), ("direction=LT", "direction=LE", 4)],
)
def test_start_step_and_limit_of_a_loop_all_count(tmp_path: Path, old: str, new: str, count: int) -> None:
    ledger = read_text(tmp_path, text_of("tpu_unrolled").replace(old, new))
    assert only(ledger.entries, kind="permute").count == count


@pytest.mark.parametrize(
    ("old", "new", "count", "guess"),
    [
        ("direction=LT", "direction=EQ", 1, "1 loop (jit(step)/jvp(mlp)/while) without a known trip count"),
        ("tuple(%zero, %fusion.3", "tuple(%hidden, %fusion.3", 1, "without a known trip count"),
    ],
)
def test_a_loop_without_a_known_trip_count_is_a_guess(
    tmp_path: Path, old: str, new: str, count: int, guess: str
) -> None:
    ledger = read_text(tmp_path, text_of("tpu_unrolled").replace(old, new))
    assert only(ledger.entries, kind="permute").count == count
    assert any(guess in text for text in ledger.guesses)


MISLEADING = [
    r"\"known_trip_count\":{\"n\":\"0\"}",
    "x, replica_groups={{0,1}}, channel_id=4",
    "x}, replica_groups={{0,1}}, backend_config={known_trip_count:{n:7}}",
    r"custom_call_target=\"nccl_all_reduce\"",
    r"{\"has_communication\": true}",
    "body=%dear, condition=%dear, calls=%dear, branch_computations={%dear}",
    "parameter(0) ROOT = s32[] all-to-all(%x), ",
]
"""What a user may call a scope: jax prints it into ``op_name``, where it means nothing."""


@pytest.mark.parametrize("name", ["cpu_scan", "gpu_async", "tpu_unrolled"])
@pytest.mark.parametrize("words", MISLEADING)
def test_what_a_program_calls_its_scopes_changes_no_count(tmp_path: Path, name: str, words: str) -> None:
    def summarize(ledger: Ledger) -> set[tuple[object, ...]]:
        fields = attrgetter("kind", "axis", "group_size", "dtype", "role", "count", "static_count", "bytes")
        return set(map(fields, ledger.entries))

    plain = read(TEXTS / f"{name}.hlo.txt")
    text = re.sub(r', metadata=\{op_name="', lambda match: match[0] + words + "/", text_of(name))
    assert words in text
    ledger = read_text(tmp_path, text)
    assert (summarize(ledger), ledger.axes, ledger.unclassified) == (summarize(plain), plain.axes, plain.unclassified)
    assert ledger.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('(%a), a=1, b={x={1},y=2}, c="q, d=4"', {"a": "1", "b": "{x={1},y=2}", "c": '"q, d=4"'}),
        ('(%a), metadata={op_name="}, a=1"}, a=2', {"metadata": '{op_name="}, a=1"}', "a": "2"}),
        ("(%a), groups=mesh['x'=2,'y'=4], ids=(0,1) {'x'}", {"groups": "mesh['x'=2,'y'=4]", "ids": "(0,1) {'x'}"}),
        ("(f32[2]{0} %a, /*index=1*/s32[] %b), a=1, a=2", {"a": "1"}),
        ('(%a), a="never closed, b=1', {"a": '"never closed, b=1'}),
    ],
)
def test_attributes_are_those_of_the_top_level(text: str, expected: dict[str, str]) -> None:
    assert parse_attributes(text) == expected


@pytest.mark.parametrize(
    ("attributes", "ranks", "axis"),
    [
        ("replica_groups={{4,5},{2,0}}, use_global_device_ids=true", (0, 2), ""),
        ("replica_groups={}, use_global_device_ids=true", tuple(range(8)), ""),
        ("replica_groups=[4,2]<=[2,4]T(1,0), use_global_device_ids=true", (0, 4), ""),
        ("replica_groups=[2,4]<=[2,2,2]T(1,0,2), use_global_device_ids=true", (0, 1, 4, 5), ""),
        ("replica_groups=mesh['data'=2,'expert'=4] {'expert','data'}", tuple(range(8)), "data+expert"),
        ("replica_groups=mesh[data=2,expert=4] {data}", (0, 4), "data"),
        ("replica_groups=mesh['a'=8] {'a':(1)2}", (0, 4), "a:(1)2"),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'a'}", (0, 1, 2, 3), "a"),
        ("replica_groups=mesh['a'=4,'b'=2], device_ids=(0,4,1,5,2,6,3,7) {'b'}", (0, 4), "b"),
    ],
)
def test_every_syntax_of_groups_gives_the_group_of_device_0(attributes: str, ranks: tuple[int, ...], axis: str) -> None:
    assert find_group(f"channel_id=1, {attributes}", EIGHT, reduces_or_gathers=False) == ReplicaGroup(ranks, axis)


def test_a_collective_without_device_0_is_a_guess_and_not_hidden(tmp_path: Path) -> None:
    text = text_of("tpu_unrolled").replace("mesh['fsdp'=4] {'fsdp'}", "{{0},{1,2,3}}")
    ledger = read_text(tmp_path, text)
    assert only(ledger.entries, kind="all_gather").axis == "[1-3]"
    assert any("leave device 0 out" in guess for guess in ledger.guesses)


def test_groups_of_replicas_reach_over_all_partitions_unless_they_are_global() -> None:
    devices = Devices(2, 4)
    assert find_group("channel_id=1, replica_groups={{0,1}}", devices, reduces_or_gathers=True).ranks == tuple(range(8))
    assert find_group("replica_groups={{0,1}}", devices, reduces_or_gathers=True).ranks == (0, 4)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("bf16[2,4]{1,0:T(8,128)(2,1)S(1)}", [("bf16", 16)]),
        ("(f32[2]{0}, (s8[3], pred[5]), /*index=3*/u32[])", [("f32", 8), ("s8", 3), ("pred", 5), ("u32", 4)]),
        ("(s4[3], f8e4m3fn[8], c64[2], token[])", [("s4", 2), ("f8e4m3fn", 8), ("c64", 16)]),
        ("f32[<=128,2]", [("f32", 1024)]),
    ],
)
def test_shapes_have_the_bytes_of_their_tensors(shape: str, expected: list[tuple[str, int]]) -> None:
    assert [tuple(leaf) for leaf in parse_tensors(shape)] == expected


@pytest.mark.parametrize(
    ("op_name", "expected", "place"),
    [
        (
            "jit(train_step)/transpose(jvp(M))/decoder/while/body/closed_call/checkpoint/layers/dispatch/dot_general",
            "backward",
            "M/decoder/layers/dispatch/dot_general",
        ),
        ("jit(<lambda>)/jvp(ebcd,edf->ebcf)/dot_general", "forward", "ebcd,edf->ebcf/dot_general"),
        ("jit(f)/jvp()/while/body/eval_jaxpr/wo/EBCH,EHM -> EBCM/mul", "forward", "wo/EBCH,EHM -> EBCM/mul"),
        ("jit(f)/(transpose(jvp(a))/dot:jvp(b)/dot)", "backward", "(a/dot:b/dot)"),
        ("jit(f)/optimizer/adamw/add", "optimizer", "optimizer/adamw/add"),
        ("", "unknown", ""),
        ("jit(f)/x\x1b[31m\x07y", "unknown", "xy"),
    ],
)
def test_phase_and_place_come_from_op_names(op_name: str, expected: str, place: str) -> None:
    assert (find_phase(op_name), find_module(op_name)) == (expected, place)


def renamed(text: str) -> str:
    text = re.sub(
        r"%([\w.\-]+)", lambda name: f"%renamed_{name[1]}.7" if name[1] != "all-reduce-scatter.3" else name[0], text
    )
    return re.sub(r"HloModule \w+", "HloModule jit_other", text)


def moved(text: str) -> str:
    text = re.sub(r", metadata=\{[^}]*\}", ', metadata={op_name="jit(g)/{odd}" source_file="b.py" source_line=9}', text)
    return re.sub(r"channel_id=(\d+)", r"channel_id=1\1", text.replace("/*index=5*/", "")).replace("step.py", "b.py")


@pytest.mark.parametrize("name", ["cpu_scan", "gpu_async", "tpu_unrolled"])
def test_the_fingerprint_survives_other_names_and_moved_lines(tmp_path: Path, name: str) -> None:
    program = read_text(tmp_path, text_of(name)).fingerprint
    assert read_text(tmp_path, renamed(text_of(name))).fingerprint == program
    assert read_text(tmp_path, moved(text_of(name))).fingerprint == program


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add(%a, %b)", "multiply(%a, %b)"),
        ("f32[3,8]{1,0} parameter(1)", "f32[3,8]{0,1} parameter(1)"),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", "replica_groups=[4,2]<=[8]"),
        ("body=%layer", "body=%dear"),
        ('"known_trip_count":{"n":"3"}', '"known_trip_count":{"n":"4"}'),
        ("num_partitions=8", "num_partitions=16"),
    ],
)
def test_the_fingerprint_changes_with_the_program(tmp_path: Path, old: str, new: str) -> None:
    text = text_of("cpu_scan")
    assert text.count(old) >= 1
    assert read_text(tmp_path, text.replace(old, new, 1)).fingerprint != read_text(tmp_path, text).fingerprint


def test_an_unknown_operation_that_looks_like_a_collective_is_reported(tmp_path: Path) -> None:
    text = text_of("tpu_unrolled").replace(" all-gather(%x.1)", " all-broadcast(%x.1)")
    ledger = read_text(tmp_path, text)
    assert [(unclassified.name, unclassified.count) for unclassified in ledger.unclassified] == [("all-broadcast", 1)]
    assert any("communication of unknown kind is not counted: 1 x all-broadcast" in w for w in ledger.warnings)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('custom_call_target="ragged_all_to_all", backend_config={replica_groups = dense<[[0, 1, 2, 3]]>}', None),
        ('custom_call_target="my_nccl_all_gather"', "custom-call my_nccl_all_gather"),
        (
            'custom_call_target="tpu_custom_call", backend_config={"custom_call_config":{"has_communication": true}}',
            "custom-call tpu_custom_call with remote copies",
        ),
    ],
)
def test_custom_calls_that_communicate_are_counted_or_reported(tmp_path: Path, call: str, expected: str | None) -> None:
    line = "  %extra = bf16[4,8]{1,0:T(8,128)(2,1)} custom-call(%x.1, %x.1), " + call + "\n  ROOT %all-gather.1"
    ledger = read_text(tmp_path, text_of("tpu_unrolled").replace("  ROOT %all-gather.1", line))
    assert [unclassified.name for unclassified in ledger.unclassified] == ([expected] if expected else [])
    assert ("all_to_all" in totals(ledger)) == (expected is None)


@pytest.mark.parametrize("words", [r"custom_call_target=\"nccl_all_reduce\"", r"{\"has_communication\": true}"])
@pytest.mark.parametrize("place", ["metadata={op_name", "frontend_attributes={note"])
def test_a_custom_call_is_what_its_target_says_and_not_its_scope(tmp_path: Path, words: str, place: str) -> None:
    call = f'custom_call_target="plain", {place}="{words}"}}'
    line = f"  %extra = bf16[4,8]{{1,0}} custom-call(%x.1, %x.1), {call}\n  ROOT %all-gather.1"
    ledger = read_text(tmp_path, text_of("tpu_unrolled").replace("  ROOT %all-gather.1", line))
    assert ledger.unclassified == []
    assert totals(ledger) == totals(read(TEXTS / "tpu_unrolled.hlo.txt"))


def test_a_send_counts_as_a_permutation_and_its_receive_and_host_transfers_are_not(tmp_path: Path) -> None:
    lines = (
        "  %s = (bf16[4,8]{1,0}, u32[], token[]) send(%x.1, %x.1), channel_id=9, "
        "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,0}}}\n"
        "  %r = (bf16[4,8]{1,0}, u32[], token[]) recv(%x.1), channel_id=9\n"
        "  %h = (bf16[4,8]{1,0}, u32[], token[]) send(%x.1, %x.1), channel_id=10, is_host_transfer=true\n"
        "  ROOT %all-gather.1"
    )
    ledger = read_text(tmp_path, text_of("tpu_unrolled").replace("  ROOT %all-gather.1", lines))
    assert totals(ledger)["permute"] == (4, 2, 3 * 64 + 64)
    assert ledger.unclassified == []


def test_collectives_that_nothing_runs_are_not_counted(tmp_path: Path) -> None:
    text = text_of("tpu_unrolled").replace("fusion(%arg), kind=kCustom, calls=%all-reduce-scatter.3", "copy(%arg)")
    ledger = read_text(tmp_path, text)
    assert "reduce_scatter" not in totals(ledger)


KERNEL = """  %kernel = bf16[8,16]{1,0} custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={a={
"tuning":"{\\"block\\": 128, \\"open\\": \\"{\\"}"
}}, metadata={op_name="jit(step)/kernel/pallas_call"}
"""
"""An attribute of several lines: one of them begins with a brace, and a string has a brace too many."""
GATHER = """  ROOT %all-gather = bf16[32,16]{1,0} all-gather(%p), channel_id=1, frontend_attributes={
  "hint":"a",
  "note": {
}
}, replica_groups=[1,4]<=[4], dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(step)/moe/gather"}
"""
BROKEN_LINES = f"""HloModule jit_step, is_scheduled=true, num_partitions=4

ENTRY %main (p: bf16[8,16]) -> bf16[32,16] {{
  %p = bf16[8,16]{{1,0}} parameter(0)
{KERNEL}{GATHER}}}
"""


def test_a_brace_inside_an_attribute_of_several_lines_ends_nothing(tmp_path: Path) -> None:
    ledger = read_text(tmp_path, BROKEN_LINES)
    assert [(entry.kind, entry.group_size, entry.count) for entry in ledger.entries] == [("all_gather", 4, 1)]
    assert ledger.fingerprint == read_text(tmp_path, BROKEN_LINES.replace('"jit(step)/moe/gather"', '"f"')).fingerprint
    assert ledger.fingerprint != read_text(tmp_path, BROKEN_LINES.replace("128", "64")).fingerprint


def test_a_text_with_such_attributes_that_was_cut_ends_in_the_middle(tmp_path: Path) -> None:
    entry = BROKEN_LINES.index("ENTRY")
    for end in range(entry, len(BROKEN_LINES.rstrip()), 7):
        with pytest.raises(ReadError, match="ends in the middle"):
            read_text(tmp_path, BROKEN_LINES[:end])


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("name", ["cpu_scan", "gpu_async", "tpu_unrolled"])
def test_a_text_that_was_cut_off_is_refused(tmp_path: Path, name: str, cut: float) -> None:
    text = text_of(name).rstrip()
    with pytest.raises(ReadError, match=r"module\.txt: .*(cut off|in the middle|not in the file).*copy it again"):
        read_text(tmp_path, text[: int(len(text) * cut)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing of the kind\n", "has no HloModule line"),
        ("module @jit_f attributes {mhlo.num_partitions = 8 : i32} {\n}\n", "is StableHLO"),
        (
            "HloModule a\n\nENTRY %e () -> f32[] {\n  ROOT %c = f32[] constant(1)\n}\n",
            "may be from before XLA's passes",
        ),
        (
            'HloModule a, num_partitions=2\n\nENTRY e {\n  x = f32[] custom-call(), custom_call_target="Sharding"\n}\n',
            "from before XLA's passes, which insert the collectives",
        ),
    ],
)
def test_what_is_no_compiled_program_is_refused_with_what_to_give_instead(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ReadError, match=message):
        read_text(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("body=%body", "body=%gone", "gone, which is not in the file"),
        ("%body (", "%condition (", "two computations are called condition"),
        ("mesh['fsdp'=4] {'fsdp'}", "mesh['fsdp'=4] {'other'}", "the axis 'other'"),
        ("mesh['fsdp'=4] {'fsdp'}", "rings(3)", "replica_groups in an unknown syntax"),
        ("bf16[16,8]{1,0:T(8,128)(2,1)} all-gather(", "bf16[?,8] all-gather(", "the dimension '\\?' has no size"),
        ("bf16[16,8]{1,0:T(8,128)(2,1)} all-gather(", "quux[16,8] all-gather(", "element type quux"),
        ("ENTRY %main", "%main", "ends in the middle: it has no ENTRY"),
        ("ENTRY %main", "}\n\nENTRY %main", "closing brace without an opening one"),
    ],
)
def test_a_broken_program_is_refused_with_what_is_broken(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = text_of("tpu_unrolled")
    assert old in text
    with pytest.raises(ReadError, match=message):
        read_text(tmp_path, text.replace(old, new))


def test_two_modules_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="more than one HloModule"):
        read_text(tmp_path, text_of("tpu_unrolled") + text_of("gpu_async"))
