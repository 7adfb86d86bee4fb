"""What a client may send in one message, where the operator does not say."""

from __future__ import annotations

import pytest

from scheduler_svc.longest_token import LongestToken
from scheduler_svc.message_size import largest_message

MIB = 2**20


@pytest.mark.parametrize(
    ("max_model_len", "num_bytes", "expected"),
    [
        (None, 81, 16 * MIB),
        (256, 81, 4 * MIB),
        (65_536, 48, 4 * MIB),
        (65_536, 49, 4 * MIB + 65_536),
        (131_072, 100, 100 * 131_072 + MIB),
        (131_072, 120, 16 * MIB),
        (131_072, 128, 16 * MIB),
        (32_768, None, 5 * MIB),
    ],
)
def test_a_message_may_be_as_large_as_a_prompt_of_the_model(
    max_model_len: int | None, num_bytes: int | None, expected: int
) -> None:
    longest = None if num_bytes is None else LongestToken(num_bytes, dropped=b"")
    assert largest_message(max_model_len, longest) == expected
