"""Mistakes and refactorings planted in the demo's repository, each traced: what the Program says of them."""

import os
import shutil
import subprocess
import sys
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from regbot.judge.program import judge_program
from regbot.ledgers import catalogue as names
from regbot.records.config import Config
from regbot.records.ledger import Ledger
from regbot.records.verdict import ProgramSection
from support.guest_runs import Shared

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("paper_library")]
REGBOT = str(Path(sys.executable).with_name("regbot"))
WORKLOAD = "moe:qwen3-30b-a3b/ep"

Edit = tuple[str, str, str]
"""A file of the demo's sources, and the text that is replaced."""

MLP = """\
        gate, up = F.linear(x, self.w_in[place]).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.w_out[place])"""
MLP_IN_FLOAT32 = """\
        gate, up = F.linear(x.float(), self.w_in[place].float()).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.w_out[place].float()).to(x.dtype)"""
NAMED_MLP = """\
        both = F.linear(x, self.w_in[place])
        gate, up = both.chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.w_out[place])"""
RECOMPUTE = """\
        from torch.utils.checkpoint import checkpoint

        blocks = enumerate(rows.split(counts))
        return torch.cat([checkpoint(self._mlp, place, block, use_reentrant=False) for place, block in blocks])"""
FORWARD = "        return torch.cat([self._mlp(place, block) for place, block in enumerate(rows.split(counts))])"
OWNER = """\
        owner = torch.repeat_interleave(
            torch.arange(len(counts), device=rows.device),
            torch.tensor(counts, device=rows.device),
            output_size=rows.shape[0],
        )
        out = torch.zeros_like(rows)
        for place in range(len(counts)):
            {body}
        return out"""
ALL_ROWS = "out = out + self._mlp(place, rows) * (owner == place).unsqueeze(1).to(rows.dtype)"
BY_MASK = "out[owner == place] = self._mlp(place, rows[owner == place])"
BY_INDEX = (
    "out = out.index_copy(0, torch.where(owner == place)[0], self._mlp(place, rows[torch.where(owner == place)[0]]))"
)
LOOP = """\
        outputs = []
        for place, block in enumerate(rows.split(counts)):
            outputs.append(self._mlp(place, block))
        return torch.cat(outputs)"""
SIZES = "    sent = counts.view(ranks, -1).sum(1).tolist()\n"
EXTRACTED_SIZES = """\
    def per_rank(numbers: Tensor) -> list[int]:
        return numbers.view(ranks, -1).sum(1).tolist()

    sent = per_rank(counts)
"""
EXCHANGE = "        return exchange(x, routing, self.experts)"

KEPT = f"        self.last = [*getattr(self, 'last', [])[-2:], rows.float() * 2]\n{FORWARD}"
RESULT = "        combined = exchange(x, routing, self.experts)\n        return combined"

MISTAKES: dict[str, tuple[Edit, str]] = {
    "every expert computes every row": (("experts.py", FORWARD, OWNER.format(body=ALL_ROWS)), names.FLOPS_UP),
    "a mask selects rows": (("experts.py", FORWARD, OWNER.format(body=BY_MASK)), names.WAITS_ADDED),
    "where selects rows": (("experts.py", FORWARD, OWNER.format(body=BY_INDEX)), names.WAITS_ADDED),
    "synchronize": (("moe.py", EXCHANGE, f"        torch.cuda.synchronize()\n{EXCHANGE}"), names.WAITS_ADDED),
    "a kept reference": (("experts.py", FORWARD, KEPT), names.PEAK_UP),
    "products in float32": (("experts.py", MLP, MLP_IN_FLOAT32), names.PRODUCT_WIDENED),
    "recompute of the experts": (("experts.py", FORWARD, RECOMPUTE), names.RECOMPUTE_ADDED),
}
REFACTORINGS: dict[str, Edit] = {
    "a variable is renamed": ("dispatch.py", "arriving", "incoming"),
    "a comment": ("experts.py", FORWARD, f"        # One block of rows for each expert.\n{FORWARD}"),
    "a loop in place of a list": ("experts.py", FORWARD, LOOP),
    "a named result": ("moe.py", EXCHANGE, RESULT),
    "a method is renamed": ("experts.py", "_mlp(", "_swiglu("),
    "an extracted function": ("dispatch.py", SIZES, EXTRACTED_SIZES),
    "keywords in a call": ("router.py", ".softmax(dim=-1)", ".softmax(-1)"),
    "intermediate results get names": ("experts.py", MLP, NAMED_MLP),
}


def trace(folder: Path, edit: Edit | None = None) -> None:
    """Trace the demo's sources with one edit into ``folder/ledger.json``."""
    with as_file(files("regbot.cli.demo") / "sources") as sources:
        shutil.copytree(sources, folder / "repository")
    if edit is not None:
        name, old, new = edit
        file = folder / "repository" / "src" / "moetrain" / name
        text = file.read_text(encoding="utf-8")
        assert old in text, f"{name} has changed: {old}"
        file.write_text(text.replace(old, new), encoding="utf-8")
    command = [REGBOT, "ledger", "trace", WORKLOAD, "--variant", "smoke", "--json"]
    done = subprocess.run(
        command, cwd=folder / "repository", env=os.environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "ledger.json").write_text(done.stdout, encoding="utf-8")


@pytest.fixture
def base(shared: Shared) -> Ledger:
    return read(shared("demo-walls-base", trace))


def read(folder: Path) -> Ledger:
    return Ledger.model_validate_json((folder / "ledger.json").read_text(encoding="utf-8"))


def compare(base: Ledger, head: Ledger) -> ProgramSection:
    section = judge_program(base, head, Config())
    assert section is not None
    return section


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_named(shared: Shared, base: Ledger, name: str) -> None:
    edit, pattern = MISTAKES[name]
    head = read(shared(f"demo-walls-{name}".replace(" ", "-"), partial(trace, edit=edit)))
    section, swapped = compare(base, head), compare(head, base)
    assert pattern in [finding.pattern for finding in section.findings], section.reasons
    assert section.status in ("FAIL", "REVIEW")
    assert {finding.pattern for finding in swapped.findings} == {
        names.INVERSE[finding.pattern] for finding in section.findings
    }


@pytest.mark.parametrize("name", REFACTORINGS)
def test_a_refactoring_is_silent_on_every_wall(shared: Shared, base: Ledger, name: str) -> None:
    head = read(shared(f"demo-walls-{name}".replace(" ", "-"), partial(trace, edit=REFACTORINGS[name])))
    section = compare(base, head)
    assert (section.status, section.findings) == ("PASS", [])
    assert section.base == section.head
