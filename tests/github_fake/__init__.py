"""A small GitHub for tests: REST over HTTP with state, git data in real bare repositories, faults on demand.

What it promises, and how: every request is checked against GitHub's own description (`openapi.py`), a token may do
what GitHub documents for its permissions (`routes*.py`), git is git (`git.py`, `githttp.py`). What it does not do:
run workflows, send webhooks, render markdown. rules.md lists the rules that the description leaves out.

    with FakeGitHub(tmp_path) as hub:                     # or the fixture ``hub`` of ``github_fake.fixtures``
        hub.url                                           # the API: http://127.0.0.1:PORT
        hub.server_url                                    # git and web: the same
        repo = hub.repository("acme/moe", default_branch="main")   # private; has one first commit
        token = hub.token("github-actions[bot]", checks="write", pull_requests="write")   # -> str
        repo.git.path; repo.clone_url; repo.url           # the bare repository; for git clients; of the API
        repo.member("ann", "maintain")                    # none, read, triage, write, maintain, admin
        sha = repo.commit({"a.py": "text", "b.py": None}, branch="topic", message="m", author="ann", parent=None)
        fork = repo.fork("mallory")                       # a Repository of its own, "mallory/moe"
        number = repo.open_pull(head="mallory:topic", base="main", title="t", author="mallory", body="")
        repo.close(number, merge=False); repo.open_issue("title", "bob")
        repo.actions_may_open_pulls = True                # off by default, as at GitHub
        id = repo.comment(number, "bob", "text")          # -> int
        repo.edit_comment(id, "text")
        repo.label(number, "ann", "name")
        run = repo.workflow_run(path=".github/workflows/x.yml", event="pull_request", head_branch="topic",
                                head_sha=sha, title="t", conclusion="success", status="completed", attempt=1,
                                head_repository=None, seconds=0.0)   # -> Run, run.id; seconds: how long it took
        artifact = run.artifact("regbot-session", zip_bytes)   # -> Artifact, artifact.id; artifact.expired = True
        repo.event_of("issue_comment", comment=id)                              # -> dict, as $GITHUB_EVENT_PATH has it
        repo.event_of("pull_request_target", action="labeled", number=number, label="name", sender="ann")
        repo.event_of("pull_request_target", action="synchronize", number=number, before=sha)
        repo.event_of("workflow_run", run=run)
        repo.event_of("workflow_dispatch", workflow="x.yml", ref="main", inputs={}, sender="ann")
        repo.event_of("merge_group", number=number)       # also makes the queue's branch
        repo.comments(number)                             # [Comment(id, author, body, created, updated, ...)]
        repo.check_runs(sha)                              # [CheckRun(id, name, status, conclusion, output, ...)]
        repo.shown_check(sha, "name")                     # the newest of the name, which a required check looks at
        repo.labels(number)                               # [str]
        repo.dispatched                                   # [Dispatch(workflow, ref, inputs, by)]
        repo.pulls                                        # {number: Pull(number, title, body, head, base, state, ...)}
        hub.faults.next("502-after", "POST", "*/comments")   # see faults.py; .down = True, .stop(), .happened
        hub.requests                                      # [(method, path, status)], status 0: connection reset
        hub.violations                                    # [str]; the end of ``with`` raises if there is any
"""

from .records import CheckRun, Comment, Run
from .server import FakeGitHub
from .state import Repository

__all__ = ["CheckRun", "Comment", "FakeGitHub", "Repository", "Run"]
