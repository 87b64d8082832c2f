"""The demo: a pull request to a small MoE training code, and what regbot says about it."""

from regbot.demo.repository import DemoRepository, PullRequest, build_repository

__all__ = ["DemoRepository", "PullRequest", "build_repository"]
