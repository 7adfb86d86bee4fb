"""Stop lists that cannot be meant are refused at the door, by name."""

from __future__ import annotations

import pytest

from citybus import InvalidRequest
from tests.e2e.field_cases.field import Field


@pytest.mark.parametrize(
    "stop",
    [[""], ["", "x"], ["x", ""], ["x"] * 17, ["x" * 257], ["x" * 2**20]],
    ids=["empty", "empty_first", "empty_last", "17_texts", "257_characters", "1_MiB"],
)
def test_F05_stop_list_is_refused(chain_field: Field, stop: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=r"stopping\.stop"):
        chain_field.client.complete("@", temperature=0, stop=stop)


def test_F05_stop_list_that_is_a_text_does_not_leave_the_client(chain_field: Field) -> None:
    for text in ("", "x"):
        with pytest.raises(TypeError, match="stop: expected a list"):
            chain_field.client.complete("@", stop=text)


def test_F05_empty_stop_list_is_none_at_all(chain_field: Field) -> None:
    assert chain_field.client.complete("@", temperature=0, stop=[]).text == "ABCDEFG"
    assert chain_field.client.complete("@", temperature=0).text == "ABCDEFG"


def test_F05_stop_lists_at_the_limits(chain_field: Field) -> None:
    most = ["y" * 256] * 15 + ["E"]
    assert chain_field.client.complete("@", temperature=0, stop=most).text == "ABCD"
