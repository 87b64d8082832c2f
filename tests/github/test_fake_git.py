"""The fake GitHub as git sees it: real repositories behind real tokens."""

import subprocess
from pathlib import Path

from github.Repository import Repository as Remote

from github_fake import FakeGitHub, Repository
from github_fake.fixtures import hub as hub
from github_fake.git import ENVIRONMENT
from support.git_repos import Repository as Worktree
from support.github_fake_client import BOT
from support.github_fake_client import remote as remote
from support.github_fake_client import repo as repo


def url(repo: Repository, token: str = "") -> str:
    return repo.clone_url.replace("://", f"://x-access-token:{token}@") if token else repo.clone_url


def git_refuses(folder: Worktree, *arguments: str) -> str:
    command = ("git", "-c", "credential.helper=", *arguments)
    environment = ENVIRONMENT | {"GIT_TERMINAL_PROMPT": "0"}
    done = subprocess.run(command, cwd=folder.path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    return done.stderr


def test_a_push_to_a_fork_moves_the_head_of_its_pull_request(
    hub: FakeGitHub, repo: Repository, remote: Remote, tmp_path: Path
) -> None:
    fork, token = repo.pulls[1].head_repository, hub.token("mallory", contents="write")
    work = Worktree.create(tmp_path / "work")
    work.git("fetch", "--quiet", url(fork, token), "topic")
    work.git("checkout", "--quiet", "-b", "topic", "FETCH_HEAD")
    sha = work.commit("more", {"most.py": "z\n"})
    work.git("push", "--quiet", url(fork, token), "topic")
    assert remote.get_pull(1).head.sha == sha
    reader = url(repo, hub.token(BOT, contents="read"))
    assert work.git("ls-remote", reader, "refs/pull/1/head").split()[0] == sha
    other = Worktree.create(tmp_path / "other")
    before = work.git("rev-parse", "HEAD~1")  # by its id, no branch's head, from the repository that it is to go into
    other.git("-c", "protocol.version=0", "fetch", "--quiet", "--depth=1", reader, before)
    assert other.git("rev-parse", "FETCH_HEAD") == before


def test_git_refuses_a_push_without_permission(hub: FakeGitHub, repo: Repository, tmp_path: Path) -> None:
    work = Worktree.create(tmp_path / "work")
    work.commit("mine", {"a.py": ""})
    push = ("push", "--force")
    assert "could not read Username" in git_refuses(work, *push, url(repo), "main")
    assert "403" in git_refuses(work, *push, url(repo, hub.token(BOT, contents="read")), "main")
    assert "403" in git_refuses(work, *push, url(repo, hub.token("mallory", contents="write")), "main")
    expired = hub.token(BOT, contents="write")
    hub.expire(expired)
    assert "Authentication failed" in git_refuses(work, *push, url(repo, expired), "main")
    allowed = url(repo, hub.token(BOT, contents="write"))
    assert "hidden" in git_refuses(work, *push, allowed, "main:refs/pull/1/head")
    work.git("push", "--quiet", allowed, "main:mine")
    assert repo.git.branch("mine") == work.git("rev-parse", "HEAD")


def test_a_public_repository_is_cloned_without_a_token_and_a_private_one_is_not(
    hub: FakeGitHub, tmp_path: Path
) -> None:
    public, private = hub.repository("acme/open", private=False), hub.repository("acme/shut")
    here = Worktree.create(tmp_path / "here")
    here.git("clone", "--quiet", public.clone_url.removesuffix(".git"), str(tmp_path / "open"))
    assert (tmp_path / "open/README.md").read_text() == "open\n"
    assert "could not read Username" in git_refuses(here, "clone", private.clone_url, str(tmp_path / "shut"))


def test_branches_of_a_real_repository_are_taken_over(repo: Repository, tmp_path: Path) -> None:
    work = Worktree.create(tmp_path / "work")
    sha = work.commit("real", {"a.py": "real\n"})
    repo.take(work.path)
    assert repo.git.branch("main") == sha
