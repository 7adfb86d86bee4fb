"""The scheduler's options."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler_svc.config import Config


def test_a_message_limit_that_grpc_cannot_hold_is_refused(tmp_path: Path) -> None:
    assert Config(model=tmp_path, max_request_bytes=2**31 - 1).max_request_bytes == 2**31 - 1
    with pytest.raises(ValueError, match="max_request_bytes must be at most 2147483647"):
        Config(model=tmp_path, max_request_bytes=2**31)


def test_speculative_tokens_are_bounded(tmp_path: Path) -> None:
    assert Config(model=tmp_path).speculative_tokens == 0
    assert Config(model=tmp_path, speculative_tokens=32).speculative_tokens == 32
    for count in (-1, 33):
        with pytest.raises(ValueError, match="speculative_tokens must be 0 to 32"):
            Config(model=tmp_path, speculative_tokens=count)
