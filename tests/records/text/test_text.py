"""Text for people: what is cut, counted and lined up."""

import pytest

from regbot.records.text.clip import clip
from regbot.records.text.wrap import wrapped


@pytest.mark.parametrize(("text", "shown"), [("", ""), ("abcde", "abcde"), ("abcdef", "abcd…")])
def test_text_that_is_too_long_ends_with_an_ellipsis(text: str, shown: str) -> None:
    assert clip(text, 5) == shown


def test_sentences_are_wrapped_between_words_and_do_nothing_to_a_terminal() -> None:
    path = "/a-long-path/" * 10
    assert wrapped(f"\x1b[31msee {path} {'word ' * 30}", "- ", "  ").splitlines() == [
        "- see",
        f"  {path}",
        "  " + " ".join(["word"] * 21),
        "  " + " ".join(["word"] * 9),
    ]
