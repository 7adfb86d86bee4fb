"""Stop texts against a search of the whole text, whatever the cuts between tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_svc.stop_texts import StopTexts


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """What each piece releases, and the match; the last entry is what the end flushes."""
    watcher = StopTexts(stops)
    released = []
    for piece in pieces:
        certain, match = watcher.feed(piece)
        released.append(certain)
        if match is not None:
            return released, match
    return [*released, watcher.flush()], None


def expected(stops: list[str], text: str) -> tuple[str, str | None]:
    """The match that is complete first, the longest of those that end there."""
    for end in range(len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "released", "match"),
    [
        ([], ["A", "B"], ["A", "B", ""], None),
        (["DEFG"], list("ABCDEFG"), ["A", "B", "C", "", "", "", ""], "DEFG"),
        (["DEFX"], list("ABCDEFG"), ["A", "B", "C", "", "", "", "DEFG", ""], None),
        (["DEFG"], list("ABCDE"), ["A", "B", "C", "", "", "DE"], None),
        (["DEFG", "FG"], list("ABCDEFG"), ["A", "B", "C", "", "", "", ""], "DEFG"),
        (["FG", "DEFG"], ["ABCDEFG"], ["ABC"], "DEFG"),
        (["BCDE", "CD"], ["ABCDE"], ["AB"], "CD"),
        (["aab"], ["a", "a", "a", "a", "b"], ["", "", "a", "a", ""], "aab"),
        (["aab"], ["aacaaab!"], ["aaca"], "aab"),
        (["né"], ["n", "é"], ["", ""], "né"),
    ],
)
def test_F03_releases_only_what_cannot_become_a_stop(
    stops: list[str], pieces: list[str], released: list[str], match: str | None
) -> None:
    assert run(stops, pieces) == (released, match)


texts = st.text("ab", max_size=5)


@given(st.lists(texts.filter(bool), max_size=5), st.lists(texts, max_size=12))
def test_equals_a_search_of_the_whole_text(stops: list[str], pieces: list[str]) -> None:
    released, match = run(stops, pieces)
    assert ("".join(released), match) == expected(stops, "".join(pieces))


@given(st.lists(texts.filter(bool), min_size=1, max_size=5), st.lists(texts, max_size=12))
def test_holds_back_no_more_than_a_beginning_of_a_stop(stops: list[str], pieces: list[str]) -> None:
    watcher = StopTexts(stops)
    for piece in pieces:
        if watcher.feed(piece)[1] is not None:
            return
        held = watcher.flush()
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_text_that_is_included_belongs_to_the_answer() -> None:
    stops = StopTexts(["cd", "bcd"], include=True)
    assert stops.feed("ab") == ("a", None)
    assert stops.feed("cde") == ("bcd", "bcd")


def test_a_stop_text_that_does_not_count_yet_stays_in_the_answer() -> None:
    stops = StopTexts(["ab"])
    assert stops.feed("xab", counts=False) == ("x", None)
    assert stops.feed("yab", counts=False) == ("aby", None)
    assert stops.feed("a") == ("ab", None)
    assert stops.feed("b") == ("", "ab")


def test_a_stop_text_that_is_complete_when_it_counts_may_have_begun_before() -> None:
    stops = StopTexts(["abc"])
    assert stops.feed("xab", counts=False) == ("x", None)
    assert stops.feed("c") == ("", "abc")
