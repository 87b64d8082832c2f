"""Detect facts about a repository from its files and git: the code to trace, the runners in use, the default branch.

The report shows the evidence for each fact, because detection can be wrong.
"""

import shutil
from dataclasses import dataclass, field

from regbot.init.entries import EntryPoint, find_entries, moe_classes, python_files
from regbot.init.framework import Stack, find_stacks, requirements, unsupported_warnings
from regbot.init.repository import Repository, TargetBranch, default_branch, origin_host
from regbot.init.runners import WORKFLOW, Runner, choose_runner, find_self_hosted
from regbot.init.templates import is_for_enterprise
from regbot.workloads.framework_needs import FRAMEWORK_NEEDS, FrameworkNeeds, package_names

WORKFLOW_PREFIX = ".github/workflows/regbot-"
PROVIDED_PACKAGES = frozenset({"torch", "numpy", "regbot", "regbot-moe", "python"})
"""Packages that regbot's own workflows install, so that a user need not add them."""


@dataclass(frozen=True)
class RepositoryFacts:
    """Facts about a repository.

    What is traced is ``entry``, or else ``stack``. If both are set, ``entry`` is used, because it was written for
    regbot."""

    branch: TargetBranch
    entry: EntryPoint | None
    """Best function ``build_layer``; None if there is none."""
    other_entries: list[EntryPoint]
    stack: Stack | None
    """Best training framework that the repository contains or uses; None if there is none."""
    other_stacks: list[Stack]
    classes: list[tuple[str, str]]
    """File and name of classes that a ``build_layer`` could return; [] if ``entry`` or ``stack`` is set."""
    runner: Runner | None
    """Best self-hosted runner in the repository's own workflows; None if there is none."""
    runners: list[Runner]
    """All self-hosted runners in these workflows, without duplicates."""
    slurm: str
    """Evidence that a Slurm cluster is used; '' if there is none."""
    packages: list[str]
    """Packages that the repository requires and that regbot's workflows do not install. There are no duplicates."""
    requirements_file: bool
    """Whether the root of the repository has a requirements.txt."""
    installed: Runner | None
    """Runner in the installed regbot-measure.yml; None if this workflow is not installed."""
    server: str
    """Host of the remote origin; '' if it is one of GitHub's own hosts."""
    enterprise: bool
    """Whether an installed workflow of regbot was written for a GitHub Enterprise Server."""
    warnings: list[str] = field(default_factory=list)

    @property
    def needs(self) -> FrameworkNeeds | None:
        """What the framework to trace needs; None if there is no framework, or its needs are unknown."""
        if self.stack is None or self.entry is not None:
            return None
        return FRAMEWORK_NEEDS.get(self.stack.traced)

    @property
    def hosted_packages(self) -> list[str]:
        """Arguments of pip for what the job on a hosted runner installs besides regbot, torch and numpy.

        [] if a ``build_layer`` is traced instead of a framework, because the requirements of such a repository may
        include packages that can be built only on a GPU machine. If a framework's repository has a requirements.txt,
        this file gives the versions, and the packages are named without a version. The job checks the repository out
        into the folder ``code``.
        """
        if self.stack is None or self.entry is not None:
            return []
        if self.requirements_file:
            return ["-r", "code/requirements.txt", *package_names(self.needed_packages)]
        return list(self.needed_packages)

    @property
    def needed_packages(self) -> list[str]:
        """What the framework needs besides torch and numpy.

        Return [] if the repository does not contain the framework's source, or if the needs are unknown."""
        if self.stack is None or not self.stack.own or self.needs is None:
            return []
        return list(self.needs.packages)


def detect(repository: Repository, branch: str | None = None) -> RepositoryFacts:
    """Detect the facts about ``repository``. ``branch`` is the target branch that the user gave; None to detect it.

    Raises CheckoutError if no target branch can be detected.
    """
    texts, size_warnings = python_files(repository)
    entry_points, stacks = find_entries(repository, texts), find_stacks(repository, texts)
    # The best entry point is first. In a repository with a framework, a function that lacks the name or the parameters
    # of the contract is taken as the framework's own.
    if stacks and (not entry_points or not entry_points[0].exact):
        entry_points = []
    runners = _runners(repository)
    installed_runners = find_self_hosted(repository.read(f"{WORKFLOW_PREFIX}measure.yml") or "")
    required_packages = (package for _, package in requirements(repository))
    regbot_workflows = [name for name in repository.names if name.startswith(WORKFLOW_PREFIX)]
    return RepositoryFacts(
        branch=TargetBranch(branch, "--branch") if branch else default_branch(repository.root),
        entry=entry_points[0] if entry_points else None,
        other_entries=entry_points[1:],
        stack=stacks[0] if stacks else None,
        other_stacks=stacks[1:],
        classes=moe_classes(texts) if not entry_points and not stacks else [],
        runner=choose_runner(runners),
        runners=sorted(set(runners)),
        slurm=_slurm(repository),
        packages=list(dict.fromkeys(name for name in required_packages if name not in PROVIDED_PACKAGES)),
        requirements_file=repository.has("requirements.txt"),
        installed=installed_runners[0] if installed_runners else None,
        server=_server(repository),
        enterprise=any(is_for_enterprise(repository.read(name) or "") for name in regbot_workflows),
        warnings=[*repository.warnings, *size_warnings, *unsupported_warnings(repository)],
    )


def _server(repository: Repository) -> str:
    """Return the host of the remote origin; '' if it is one of GitHub's own hosts."""
    host = origin_host(repository.root)
    is_run_by_github = host in ("github.com", "ssh.github.com") or host.endswith(".ghe.com")
    return "" if is_run_by_github else host


def _runners(repository: Repository) -> list[Runner]:
    """Return the runners in the repository's workflows. regbot's own workflows are skipped."""
    names = [name for name in repository.names if WORKFLOW.fullmatch(name) and not name.startswith(WORKFLOW_PREFIX)]
    return [runner for name in names for runner in find_self_hosted(repository.read(name) or "")]


def _slurm(repository: Repository) -> str:
    """Return the evidence that a Slurm cluster is used; '' if there is none."""
    if shutil.which("sbatch"):
        return "sbatch is on PATH; regbot doctor says whether a cluster answers"
    scripts = repository.names_ending(".sbatch", ".slurm")
    return f"{scripts[0]} is in the repository" if scripts else ""
