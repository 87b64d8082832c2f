"""The demo: a check of a pull request with a known effect, in a small MoE training repository."""

from regbot.cli.demo.repository import PullRequest, build_repository

__all__ = ["PullRequest", "build_repository"]
