"""The lines of a finding in the HTML page: links to lines in the diff, on a known repository."""

from pathlib import Path

import pytest

from regbot.report import comment, html
from regbot.workloads.checkout.git import find_web_address, git
from support.sharding_cases import BASE, HEAD, with_lines


def test_only_the_page_links_lines_and_only_those_in_the_diff() -> None:
    verdict, session = with_lines()
    assert "<a " not in html(verdict, session)
    header = session.header.model_copy(update={"repository": "https://github.com/acme/moe"})
    session = session.model_copy(update={"header": header})
    page = html(verdict, session)
    for arm, line in ((BASE, 41), (HEAD, 42)):
        assert f'<a href="https://github.com/acme/moe/blob/{arm.commit}/train/moe.py#L{line}"><code>' in page
    assert page.count("<a ") == 2
    assert "https://github.com/acme" not in comment(verdict, session)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("https://github.com/acme/moe.git", "https://github.com/acme/moe"),
        ("git@github.com:acme/moe.git", "https://github.com/acme/moe"),
        ("https://ann:secret@github.com/acme/moe", ""),
        ("https://evil.example/github.com/acme/moe", ""),
        ("", ""),
    ],
)
def test_the_address_is_that_of_a_remote_on_github(tmp_path: Path, url: str, address: str) -> None:
    git(tmp_path, "init", "--quiet")
    if url:
        git(tmp_path, "remote", "add", "origin", url)
    assert find_web_address(tmp_path) == address
