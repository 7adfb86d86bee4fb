"""How long an answer can be, given what the executor has."""

from __future__ import annotations

from common.step import ExecutorInfo
from scheduler_svc.core.request import Request


def most_output(info: ExecutorInfo, request: Request) -> int:
    """Most tokens that can follow the prompt of `request`; under 1 where it can never be served."""
    size, num_prompt = info.block_size, len(request.prompt)
    if request.beams is None:
        return min(info.max_model_len, info.num_blocks * size) - num_prompt
    width = request.beams.width
    if width > min(info.max_sequences, info.max_step_tokens):
        return 0
    shared = num_prompt // size  # whole blocks of the prompt are there once; each beam may need all others for itself
    blocks = shared + max(0, info.num_blocks - shared) // width
    return min(info.max_model_len, blocks * size) - num_prompt
