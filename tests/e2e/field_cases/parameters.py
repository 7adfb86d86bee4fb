"""Requests with everything that changes logits or is told besides, for tests that disturb them."""

from __future__ import annotations

from typing import Any

from citybus import Completion

PARAMETERS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    "seeded penalties": {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    "bias and bans": {"logit_bias": {65: 4.0, 66: -100.0}, "banned_token_ids": [67, 68], "bad_words": ["A", "the"]},
    "allowed": {"temperature": 1.0, "seed": 3, "allowed_token_ids": [*range(97, 123)], "stop": ["zz"]},
    "minimum": {"min_tokens": 12, "stop_token_ids": [*range(0, 256, 7)], "include_stop": True, "ignore_eos": False},
    "logprobs": {"logprobs": 5, "prompt_logprobs": 2, "echo": True, "presence_penalty": 1.0},
}
"""Six, one for each seat of a small bus."""


def told(completion: Completion) -> tuple[object, ...]:
    """All that must not depend on what happened meanwhile."""
    finish = completion.finish
    return (
        completion.token_ids,
        completion.text,
        completion.logprobs,
        completion.prompt,
        finish.reason,
        finish.stop_text,
        finish.stop_token_id,
    )
