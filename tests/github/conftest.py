"""Fixtures of the tests on the fake GitHub. A module may have a ``bench`` or a ``scene`` of its own."""

from github_fake.fixtures import hub as hub
from support.forge_cases import bench as bench
from support.forge_refresh_cases import site as site
from support.gate_scene import scene as scene
