"""What the harmless commits of a made-up history do to the demo's training code: plain tables.

Documents and comments, tests, settings of tools, and code that is written in another way or that nobody calls. None of
it changes a collective, or the time of a step by anything that could be measured.
"""

from collections.abc import Sequence

from support.bisect_edits import Edit, How, Kind

_SRC = "src/moetrain"
_COLLECTIVES, _DISPATCH, _EXPERTS, _ROUTER = (
    f"{_SRC}/{name}.py" for name in ("collectives", "dispatch", "experts", "router")
)

HEADINGS = {
    "CHANGELOG.md": "# Changes\n\n",
    "CONTRIBUTING.md": "# Contributing\n\n",
    "docs/benchmarks.md": "# Benchmarks\n\n",
    "docs/dispatch.md": "# How tokens travel\n\n",
    "docs/routing.md": "# Routing\n\n",
    ".editorconfig": "root = true\n\n",
    ".github/workflows/test.yml": "name: test\non: [push, pull_request]\njobs:\n",
    ".pre-commit-config.yaml": "repos:\n",
    "Makefile": ".PHONY: all test lint\n",
    f"{_SRC}/checkpoint.py": '"""Names and sizes of what a checkpoint of a layer holds."""\n',
    f"{_SRC}/flops.py": '"""Floating-point operations of a layer, from its numbers alone."""\n',
    f"{_SRC}/layout.py": '"""Where experts live, as plain arithmetic on ranks."""\n',
    f"{_SRC}/log.py": '"""What the training script prints, and how often."""\n\nSTEPS_BETWEEN_LINES = 50\n',
    f"{_SRC}/memory.py": '"""Bytes of a layer, from its numbers alone."""\n\nUNIT = 1 << 20\n',
    f"{_SRC}/metrics.py": '"""Numbers about a routing, for people who look at plots."""\n',
    f"{_SRC}/schedule.py": '"""Learning rates over the steps of a run."""\n\nimport math\n',
    f"{_SRC}/seeds.py": '"""One seed per purpose, from the seed of the run."""\n',
    "tests/test_collectives.py": "from moetrain import collectives\n",
    "tests/test_dispatch.py": "import torch\n\nfrom moetrain import dispatch\nfrom moetrain.router import Routing\n",
    "tests/test_experts.py": "import torch\n\nfrom moetrain.experts import Experts\n",
    "tests/test_router.py": "import pytest\nimport torch\n\nfrom moetrain.router import Router\n",
}
"""How the files begin that only edits write."""

_DOCUMENTS: dict[str, Sequence[str]] = {
    "README.md": (
        "Say what the README does not promise: Tokens are never dropped, so memory depends on the routing.",
        "Name the supported versions: Tested with torch 2.8 and newer, Python 3.10 and newer.",
        "Explain the two axes of the mesh: `ep` divides the experts, `edp` repeats them.",
        "README: a single process needs no mesh: Without a mesh the layer is an ordinary module.",
        "Tell where the seeds come from: Every expert is drawn from a seed of its own, whatever the number of ranks.",
        "Warn about uneven batches: All ranks of a group must call the layer equally often.",
        "README: which backend: Gloo serves the tests; train with NCCL.",
        "Mention float32 routing: The router computes in float32 whatever the parameters are.",
        'Stop saying "drop" — nothing is dropped: A token that many experts want is computed by all of them.',
    ),
    "docs/routing.md": (
        "Start a page about routing: A token goes to the `top_k` experts with the largest probability.",
        "Explain renormalised weights: The weights of a token's experts sum to one.",
        "Document the balanced policy: `balanced` gives every expert equally many tokens, for benchmarks only.",
        "Document the skewed policy: `skewed` gives expert e a share in proportion to 1 / (e + 1).",
        "Routing: what the gradient sees: Fixed routings keep the weights, so that the router still learns.",
        "Answer the question about ties: Ties are broken as `topk` breaks them; do not depend on it.",
        "Routing: why there is no auxiliary loss here: A balancing loss belongs to the training script.",
        "Add a word on capacity: There is no capacity limit, and therefore no capacity factor to tune.",
    ),
    "docs/dispatch.md": (
        "Start a page about the exchange: Rows are sorted by expert, sent, computed, and sent back.",
        "Explain the count exchange: Ranks first tell each other how many rows will come.",
        "Describe the gathered exchange: With few tokens it is faster to show all of them to all ranks.",
        "Dispatch: what a row is: A row is one token on its way to one expert.",
        "Dispatch: the order of rows: Rows arrive by source rank, then by expert.",
        "Say when a rank sends nothing: A rank may send no row to another; the call is made all the same.",
        "Dispatch: who sums: The weighted sum of a token's rows is made where the token lives.",
        "Explain the backward pass: The gradient of an exchange is the exchange the other way round.",
    ),
    "docs/benchmarks.md": (
        "How we measure: Ten steps of warm-up, then forty that count.",
        "Benchmarks: fix the routing: Use `balanced`; natural routing changes with the weights.",
        "Benchmarks: one number per launch: Steps of one launch are not independent of each other.",
        "Benchmarks: pin the clocks: Without fixed clocks the first minutes are faster than the rest.",
        "Benchmarks: report the slowest rank: Collectives make every rank wait for it.",
        "Benchmarks: threads on a CPU: Set OMP_NUM_THREADS, or the ranks fight for cores.",
    ),
    "CONTRIBUTING.md": (
        "Tell newcomers how to run the tests: `pip install -e .[dev]`, then `pytest`.",
        "Ask for one change per pull request: A pull request does one thing, and its title says which.",
        "Contributing: name the reviewers: @ines for the exchange, @søren for everything that is timed.",
        "Contributing: docstrings: A docstring gives shapes and units.",
        "Contributing: no new dependency without an issue: Ask before you add one.",
        "Contributing: numbers in commit messages: Say on which machine they were measured.",
        "Contributing: old checkpoints must load: Parameter names are an interface.",
    ),
}
"""By file: subject and line of each commit."""

_COMMENTS: Sequence[tuple[str, How, str, Sequence[str]]] = (
    (_DISPATCH, "before", "def _by_expert", ("# Stable: the order of tokens is kept.", "# A stable sort.")),
    (_DISPATCH, "before", "def _combine", ("# index_copy, as every place is written once.",)),
    (_DISPATCH, "before", "def exchange_by_all_to_all", ("# The default above FEW_TOKENS.", "# For many tokens.")),
    (_DISPATCH, "before", "def exchange_by_gather", ("# Three gathers; the weights carry a gradient.", "# For few.")),
    (_DISPATCH, "before", "def _transpose_blocks", ("# A transposition without padding.",)),
    (_DISPATCH, "before", "    grid", ("    # Row by row, as they arrived.",)),
    (_EXPERTS, "before", "    @torch.no_grad()", ("    # Meta tensors are filled later, by whoever makes them real.",)),
    (_EXPERTS, "after", "    def reset_parameters", ('        """Draw every expert from its own seed."""',)),
    (_ROUTER, "after", "    def _fixed", ('        """Experts by policy."""', '        """``[tokens, k]``."""')),
    (_ROUTER, "before", "@lru_cache", ("# Drawn once per batch size.", "# Slow, but drawn once per batch size.")),
    (_ROUTER, "before", "class Routing", ("# Not a tensor: it travels between functions only.",)),
    (_ROUTER, "before", "        probabilities = ", ("        # float32: bfloat16 cannot tell 128 experts apart.",)),
    (_ROUTER, "before", "        while", ("        # Rejection: few draws are repeated.",)),
    (_COLLECTIVES, "after", "class _Linear", ('    """A linear map over ranks, and its transposed map."""',)),
    (_COLLECTIVES, "before", "def all_to_all", ("# The only one with uneven sizes.", "# Sizes may be uneven here.")),
    (_COLLECTIVES, "before", "def all_gather", ("# Even sizes only.",)),
    (_COLLECTIVES, "before", "def _reduce_scatter", ("# Sums in the dtype of its input.", "# No upcast here.")),
    (_COLLECTIVES, "after", "def _all_gather(", ('    """Without a gradient."""',)),
    (f"{_SRC}/__init__.py", "end", "", ("# Public names are imported from their modules.",)),
    (f"{_SRC}/moe.py", "before", '"""The MoE layer', ("# The entry point of regbot is build_layer.",)),
)
"""File, place, and the comment or docstring there; then what it says later."""

_MARKS = ' #."'

_NAMES: Sequence[tuple[str, str, str, Sequence[str]]] = (
    (_COLLECTIVES, "def _all_to_all", "out", ("received", "arrived")),
    (_COLLECTIVES, "def _all_gather(", "out", ("everything",)),
    (_COLLECTIVES, "def _reduce_scatter(", "out", ("share", "kept")),
    (_COLLECTIVES, "def all_to_all", "forward_exchange", ("outward",)),
    (_COLLECTIVES, "def all_to_all", "backward_exchange", ("way_home",)),
    (_DISPATCH, "def exchange_locally", "counts", ("sizes",)),
    (_DISPATCH, "def exchange_locally", "order", ("permutation",)),
    (_DISPATCH, "def exchange_by_all_to_all", "arriving", ("incoming", "announced")),
    (_DISPATCH, "def exchange_by_all_to_all", "sent", ("leaving",)),
    (_DISPATCH, "def exchange_by_all_to_all", "received", ("expected",)),
    (_DISPATCH, "def exchange_by_all_to_all", "ranks", ("peers",)),
    (_DISPATCH, "def exchange_by_gather", "mine", ("owed",)),
    (_DISPATCH, "def exchange_by_gather", "token", ("source",)),
    (_DISPATCH, "def _by_expert", "experts", ("numbers",)),
    (_DISPATCH, "def _combine", "by_token", ("grouped", "per_token")),
    (_DISPATCH, "def _transpose_blocks", "grid", ("table",)),
    (_DISPATCH, "def _transpose_blocks", "column", ("lane",)),
    (_ROUTER, "def _zipf", "draw", ("generator",)),
    (_ROUTER, "def _zipf", "popularity", ("cumulated", "shares")),
    (_ROUTER, "def _zipf", "row", ("taken",)),
    (_ROUTER, "    def forward", "probabilities", ("scores",)),
    (_ROUTER, "    def forward", "chosen", ("picked", "largest")),
    (_ROUTER, "    def _fixed", "first", ("start",)),
    (_EXPERTS, "    def reset_parameters", "place", ("i",)),
    (_EXPERTS, "    def reset_parameters", "number", ("index",)),
)
"""By function and local variable: what it is called next."""

_REWRITTEN: Sequence[tuple[str, str, str, str]] = (
    ("Keep more skewed routings", _ROUTER, "@lru_cache(maxsize=2)", "@lru_cache(maxsize=4)"),
    ("One assignment per line in Router", _ROUTER, "        self.policy, self.seed = policy, seed\n",
     "        self.policy = policy\n        self.seed = seed\n"),
    ("Annotate the rows of a skewed routing", _ROUTER, "    rows = []\n", "    rows: list[list[int]] = []\n"),
    ("Annotate numbers", _ROUTER, "    numbers = range", "    numbers: range = range"),
    ("Add an axis by None as elsewhere", _ROUTER, "first.unsqueeze(1)", "first[:, None]"),
    ("Look policies up in a set", _ROUTER, '("natural", "balanced", "skewed")', '{"natural", "balanced", "skewed"}'),
    ("Annotate the grid of blocks", _DISPATCH, "    grid = [[", "    grid: list[list[Tensor]] = [["),
    ("Name the argument of view", _DISPATCH, "view(*routing.experts.shape, -1)",
     "view((*routing.experts.shape, -1))"),
    ("Keep expert numbers as a tuple", _EXPERTS, "self.seed = numbers, seed", "self.seed = tuple(numbers), seed"),
    ("Seed of an expert: number first", _EXPERTS, "self.seed * 100_003 + number", "number + self.seed * 100_003"),
    ("Shape of new rows as one tuple", _COLLECTIVES, "x.new_empty(sum(receive), *x.shape[1:])",
     "x.new_empty((sum(receive), *x.shape[1:]))"),
    ("Context keeps the transposed map by name", _COLLECTIVES, "        ctx.transposed = transposed\n",
     '        setattr(ctx, "transposed", transposed)\n'),
)  # fmt: skip
"""Subject, file, words, and what stands instead of them."""

_ASSERTS: Sequence[tuple[str, str, str, str]] = (
    ("Refuse an impossible top_k early", _ROUTER, "        super().__init__()",
     "        assert 0 < top_k <= num_experts, (top_k, num_experts)\n"),
    ("A skewed routing needs enough experts", _ROUTER, "    draw = ", "    assert top_k <= num_experts\n"),
    ("Experts: at least one per rank", _EXPERTS, "        super().__init__()", "        assert len(numbers) > 0\n"),
    ("all_to_all: one size per rank", _COLLECTIVES, "def _all_to_all", "    assert len(send) == len(receive)\n"),
    ("reduce_scatter: rows must divide", _COLLECTIVES, "def _reduce_scatter(",
     "    assert x.shape[0] % group.size() == 0\n"),
    ("_combine: one place per row", _DISPATCH, "    by_token = ", "    assert order.dim() == 1\n"),
    ("_transpose_blocks: two dimensions", _DISPATCH, "    grid", "    assert len(grid) == sizes.shape[0]\n"),
)  # fmt: skip
"""Subject, file, line before, and what is checked."""

_FUNCTIONS: dict[str, Sequence[str]] = {
    _COLLECTIVES: (
        "is_alone(group: dist.ProcessGroup | None) -> bool = group is None or group.size() == 1",
        "bytes_of(rows: Tensor) -> int = rows.numel() * rows.element_size()",
        "next_rank(group: dist.ProcessGroup) -> int = (group.rank() + 1) % group.size()",
    ),
    _ROUTER: (
        "slots(routing: Routing) -> int = routing.experts.numel()",
        "top_k_of(routing: Routing) -> int = routing.experts.shape[1]",
    ),
    _DISPATCH: ("rows_of(routing: Routing) -> int = routing.experts.numel()",),
    f"{_SRC}/checkpoint.py": (
        "prefix(layer: int) -> str = f'layers.{layer}.moe.'",
        "parameter_names(layer: int) -> list[str] = [prefix(layer) + name for name in ('w_in', 'w_out')]",
    ),
    f"{_SRC}/flops.py": (
        "expert_flops(hidden: int, width: int) -> int = 6 * hidden * width",
        "router_flops(hidden: int, experts: int) -> int = 2 * hidden * experts",
        "layer_flops(tokens: int, top_k: int, hidden: int, width: int) -> int = tokens * top_k * 6 * hidden * width",
    ),
    f"{_SRC}/layout.py": (
        "owner(expert: int, experts: int, ranks: int) -> int = expert * ranks // experts",
        "hosted(rank: int, each: int) -> range = range(rank * each, (rank + 1) * each)",
    ),
    f"{_SRC}/log.py": (
        "line(step: int, loss: float) -> str = f'step {step:6d}  loss {loss:.4f}'",
        "due(step: int) -> bool = step % STEPS_BETWEEN_LINES == 0",
    ),
    f"{_SRC}/memory.py": (
        "expert_bytes(hidden: int, width: int, item: int) -> int = 3 * hidden * width * item",
        "mebibytes(size: int) -> float = size / UNIT",
    ),
    f"{_SRC}/metrics.py": (
        "imbalance(counts: list[int]) -> float = max(counts) * len(counts) / max(1, sum(counts))",
        "idle(counts: list[int]) -> int = counts.count(0)",
        "largest(counts: list[int]) -> int = counts.index(max(counts))",
    ),
    f"{_SRC}/schedule.py": (
        "warmup(step: int, steps: int) -> float = min(1.0, (step + 1) / steps)",
        "cosine(step: int, steps: int) -> float = 0.5 * (1 + math.cos(math.pi * step / steps))",
    ),
    f"{_SRC}/seeds.py": (
        "seed_of(run: int, purpose: str) -> int = run * 1009 + sum(purpose.encode())",
        "data_seed(run: int, rank: int) -> int = run * 1013 + rank",
    ),
}
"""By module: small functions that nobody calls yet, as signature and value."""

_TESTS: dict[str, Sequence[tuple[str, ...]]] = {
    "tests/test_router.py": (
        (
            "weights_sum_to_one",
            "weights = Router(8, 4, 2)(torch.randn(5, 8)).weights",
            "torch.testing.assert_close(weights.sum(1), torch.ones(5))",
        ),
        (
            "the_experts_of_a_token_differ",
            "experts = Router(8, 4, 2)(torch.randn(5, 8)).experts",
            "assert all(len(set(row)) == 2 for row in experts.tolist())",
        ),
        (
            "an_unknown_policy_is_refused",
            'with pytest.raises(ValueError, match="routing policy"):',
            '    Router(8, 4, 2, policy="random")',
        ),
        (
            "skewed_routing_prefers_the_first_expert",
            'counts = Router(8, 4, 2, policy="skewed")(torch.randn(64, 8)).experts.flatten().bincount().tolist()',
            "assert counts[0] == max(counts)",
        ),
        (
            "weights_are_float32",
            "weights = Router(8, 4, 2, dtype=torch.bfloat16)(torch.randn(5, 8)).weights",
            "assert weights.dtype == torch.float32",
        ),
    ),
    "tests/test_experts.py": (
        ("experts_accept_no_rows", "assert Experts(range(2), 8, 4)(torch.zeros(1, 8), [0, 1]).shape == (1, 8)"),
        (
            "an_expert_is_the_same_anywhere",
            "assert torch.equal(Experts([3], 8, 4).w_in[0], Experts([2, 3], 8, 4).w_in[1])",
        ),
        (
            "parameter_names_are_an_interface",
            'assert [name for name, _ in Experts([0], 8, 4).named_parameters()] == ["w_in", "w_out"]',
        ),
        ("gate_and_up_are_one_parameter", "assert Experts([0], 8, 4).w_in.shape == (1, 8, 8)"),
    ),
    "tests/test_dispatch.py": (
        (
            "pairs_are_ordered_by_expert",
            "routing = Routing(torch.tensor([[1], [0]]), torch.ones(2, 1), 2)",
            "assert dispatch._by_expert(routing)[0].tolist() == [1, 0]",
        ),
        (
            "transposed_twice_is_as_before",
            "rows, sizes = torch.arange(6.0).view(6, 1), torch.tensor([[1, 2], [3, 0]])",
            "there = dispatch._transpose_blocks(rows, sizes)",
            "assert torch.equal(dispatch._transpose_blocks(there, sizes.t()), rows)",
        ),
        (
            "one_process_needs_no_exchange",
            "routing, x = Routing(torch.zeros(3, 1, dtype=torch.long), torch.ones(3, 1), 1), torch.randn(3, 2)",
            "assert torch.equal(dispatch.exchange_locally(x, routing, lambda rows, counts: rows), x)",
        ),
    ),
    "tests/test_collectives.py": (
        (
            "all_collectives_are_there",
            "assert collectives.all_to_all and collectives.all_gather and collectives.reduce_scatter",
        ),
    ),
}
"""By file: name of each test, and its lines."""

_SETTINGS: dict[str, Sequence[tuple[str, str]]] = {
    ".gitignore": (
        ("Ignore bytecode", "__pycache__/\n"),
        ("Ignore builds", "build/\n*.egg-info/\n"),
        ("Ignore editors", ".idea/\n.vscode/\n"),
        ("Ignore profiles", "*.nsys-rep\ntraces/\n"),
    ),
    ".editorconfig": (
        ("Editors: four spaces", "[*.py]\nindent_style = space\nindent_size = 4\n\n"),
        ("Editors: end files with a newline", "[*]\ninsert_final_newline = true\n\n"),
    ),
    ".github/workflows/test.yml": (
        ("Run the tests of every push", "  test:\n    runs-on: ubuntu-latest\n    steps:\n      - run: pytest\n"),
        ("Lint every push", "  lint:\n    runs-on: ubuntu-latest\n    steps:\n      - run: ruff check .\n"),
    ),
    ".pre-commit-config.yaml": (
        ("Format before a commit", "  - repo: git.example/ruff\n    rev: v0.9\n    hooks: [{id: ruff-format}]\n"),
        ("Check YAML before a commit", "  - repo: git.example/hooks\n    rev: v5\n    hooks: [{id: yaml}]\n"),
    ),
    "Makefile": (
        ("make test", "test:\n\tpytest\n"),
        ("make lint", "lint:\n\truff check .\n"),
        ("make all", "all: lint test\n"),
    ),
    "pyproject.toml": (
        ("Lines of 120 characters", "\n[tool.ruff]\nline-length = 120\n"),
        ("Sort imports", '\n[tool.ruff.lint]\nextend-select = ["I"]\n'),
        ("Check types strictly", "\n[tool.mypy]\nstrict = true\n"),
        ("Measure coverage of branches", "\n[tool.coverage.run]\nbranch = true\n"),
    ),
}
"""By file: subject and lines."""

_ENDLESS: Sequence[tuple[Kind, str, str, str, str]] = (
    ("docs", "CHANGELOG.md", "Changelog up to build {n}", "- As of build {n}.\n", ""),
    ("tests", "tests/conftest.py", "Tests: shuffle by another seed ({n})", "SHUFFLE = {n}\n", ""),
    ("code", f"{_SRC}/__init__.py", "Count builds: {n}", "BUILD = {n}\n", ""),
    ("config", "pyproject.toml", "Release 0.3.{n}", 'version = "0.3.{n}"', 'version = "0.3.0"'),
    ("config", "requirements-dev.txt", "Bump ruff to 0.9.{n}", "ruff==0.9.{n}\npytest>=8\n", ""),
)
"""What a history of any length can go on with: kind, file, subject, text, and the words it stands instead of."""


def harmless_edits() -> tuple[Edit, ...]:
    """All of the tables, in their order."""
    return (*_documents(), *_comments(), *_code(), *_functions(), *_tests(), *_settings(), *_endless())


def _documents() -> list[Edit]:
    split = [(path, line.rpartition(": ")) for path, lines in _DOCUMENTS.items() for line in lines]
    return [Edit("docs", path, "end", ((subject, f"- {text}\n"),)) for path, (subject, _, text) in split]


def _comments() -> list[Edit]:
    found = []
    for path, how, at, texts in _COMMENTS:
        module = path.rpartition("/")[2].removesuffix(".py")
        versions = tuple((f"{module}: {text.strip(_MARKS)}", f"{text}\n") for text in texts)
        found.append(Edit("docs", path, how, versions, at))
    return found


def _code() -> list[Edit]:
    names = []
    for path, at, old, news in _NAMES:
        function = at.split()[1].partition("(")[0]
        steps = zip((old, *news), news, strict=False)
        versions = tuple((f"Rename {before} to {after} in {function}", after) for before, after in steps)
        names.append(Edit("code", path, "name", versions, at, old))
    rewritten = [Edit("code", path, "instead", ((subject, new),), at) for subject, path, at, new in _REWRITTEN]
    return [*names, *rewritten, *(Edit("code", path, "after", ((what, new),), at) for what, path, at, new in _ASSERTS)]


def _functions() -> list[Edit]:
    split = [(path, line.partition(" = ")) for path, lines in _FUNCTIONS.items() for line in lines]
    return [
        Edit("code", path, "end", ((f"Add {head.partition('(')[0]}", f"\n\ndef {head}:\n    return {value}\n"),))
        for path, (head, _, value) in split
    ]


def _tests() -> list[Edit]:
    found = []
    for path, tests in _TESTS.items():
        for name, *lines in tests:
            text = "".join((f"\n\ndef test_{name}() -> None:\n", *(f"    {line}\n" for line in lines)))
            found.append(Edit("tests", path, "end", ((f"Test: {name.replace('_', ' ')}", text),)))
    return found


def _settings() -> list[Edit]:
    return [Edit("config", path, "end", (version,)) for path, versions in _SETTINGS.items() for version in versions]


def _endless() -> list[Edit]:
    return [
        Edit(kind, path, "instead" if at else "end", ((subject, text),), at, endless=True)
        for kind, path, subject, text, at in _ENDLESS
    ]
