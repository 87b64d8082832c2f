"""What ``regbot init`` finds out about a repository, all of it from files and git: the code to trace, the runners that
are used already, the default branch. Each finding says where it is from, because each may be wrong."""

import shutil
from dataclasses import dataclass, field

from regbot.init.entries import Entry, find_entries, moe_classes, python_files
from regbot.init.framework import Stack, find_stacks, notes, requirements
from regbot.init.repository import Branch, Repository, default_branch, origin_host
from regbot.init.runners import WORKFLOW, Runner, best, self_hosted
from regbot.init.templates import for_enterprise

OURS = ".github/workflows/regbot-"
BROUGHT = frozenset({"torch", "numpy", "regbot", "python"})


@dataclass(frozen=True)
class Findings:
    """``entry`` is taken before ``stack``: a function with the contract's signature was written for regbot."""

    branch: Branch
    entry: Entry | None
    other_entries: list[Entry]
    stack: Stack | None
    other_stacks: list[Stack]
    classes: list[tuple[str, str]]
    runner: Runner | None
    runners: list[Runner]
    slurm: str
    packages: list[str]
    """What the repository asks for beside what regbot brings along, each once."""
    requirements_file: bool
    installed: Runner | None
    """What an installed regbot-measure asks for."""
    server: str
    """The host of origin, where that is none of GitHub's own; else ''."""
    enterprise: bool
    """Is something installed that is for a GitHub Enterprise Server?"""
    warnings: list[str] = field(default_factory=list)

    @property
    def installs_requirements(self) -> bool:
        """Is the hosted job to install requirements.txt? Of a framework, which cannot be traced without: of other code
        it may hold what only a GPU machine can build."""
        return self.stack is not None and self.entry is None and self.requirements_file


def detect(repository: Repository, branch: str | None = None) -> Findings:
    """Look at ``repository``; ``branch`` where the user says it. Raises CheckoutError where no branch can be told."""
    texts, cut = python_files(repository)
    entries, stacks = find_entries(repository, texts), find_stacks(repository, texts)
    if stacks and (not entries or not entries[0].exact):
        entries = []  # a build_layer of another signature is the framework's own
    runners = _runners(repository)
    ours = [name for name in repository.names if name.startswith(OURS)]
    return Findings(
        branch=Branch(branch, "--branch") if branch else default_branch(repository.root),
        entry=entries[0] if entries else None,
        other_entries=entries[1:],
        stack=stacks[0] if stacks else None,
        other_stacks=stacks[1:],
        classes=moe_classes(texts) if not entries and not stacks else [],
        runner=best(runners),
        runners=sorted(set(runners)),
        slurm=_slurm(repository),
        packages=list(dict.fromkeys(name for _, name in requirements(repository) if name not in BROUGHT)),
        requirements_file=repository.has("requirements.txt"),
        installed=next(iter(self_hosted(repository.read(f"{OURS}measure.yml") or "")), None),
        server=_server(repository),
        enterprise=any(for_enterprise(repository.read(name) or "") for name in ours),
        warnings=[*repository.warnings, *cut, *notes(repository)],
    )


def _server(repository: Repository) -> str:
    host = origin_host(repository.root)
    return "" if host in ("github.com", "ssh.github.com") or host.endswith(".ghe.com") else host


def _runners(repository: Repository) -> list[Runner]:
    """Runners of the workflows that are there, regbot's own aside."""
    names = [name for name in repository.names if WORKFLOW.fullmatch(name) and not name.startswith(OURS)]
    return [runner for name in names for runner in self_hosted(repository.read(name) or "")]


def _slurm(repository: Repository) -> str:
    """What speaks for a Slurm cluster; '' where nothing does."""
    if shutil.which("sbatch"):
        return "sbatch is on PATH; regbot doctor says whether a cluster answers"
    scripts = repository.ending(".sbatch", ".slurm")
    return f"{scripts[0]} is in the repository" if scripts else ""
