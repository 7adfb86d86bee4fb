"""The scheduler's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_svc.config import Config


def test_a_message_limit_that_grpc_cannot_hold_is_refused(tmp_path: Path) -> None:
    assert Config(model=tmp_path, max_request_bytes=2**31 - 1).max_request_bytes == 2**31 - 1
    with pytest.raises(ValueError, match="--max-request-bytes must be at most 2147483647"):
        Config(model=tmp_path, max_request_bytes=2**31)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("time_limit", 0, "--time-limit must be more than 0"),
        ("policy_time_limit", 0, "--policy-time-limit must be more than 0"),
        ("drain_grace", -1, "--drain-grace must not be less than 0"),
        ("attach_grace", -1, "--attach-grace must not be less than 0"),
    ],
)
def test_what_is_out_of_range_is_named_by_its_flag(tmp_path: Path, option: str, value: float, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{words}$"):
        Config(model=tmp_path, **{option: value})


def test_speculative_tokens_are_bounded(tmp_path: Path) -> None:
    assert Config(model=tmp_path).speculative_tokens == 0
    assert Config(model=tmp_path, speculative_tokens=32).speculative_tokens == 32
    for count in (-1, 33):
        with pytest.raises(ValueError, match="--speculative-tokens must be 0 to 32"):
            Config(model=tmp_path, speculative_tokens=count)
