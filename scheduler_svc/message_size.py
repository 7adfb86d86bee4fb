"""The largest message that a client may send, where the operator does not say: what a prompt of the model can take.

gRPC refuses a larger one at its head, which costs next to nothing; one that comes whole costs some milliseconds a
megabyte, whatever is in it.
"""

from __future__ import annotations

from scheduler_svc.longest_token import LongestToken

LEAST_BYTES = 4 * 2**20
"""What every server of gRPC takes, unless it is told otherwise."""

MOST_BYTES = 16 * 2**20
_BYTES_A_TOKEN = 128  # where the longest is not known; that of most large vocabularies
_OTHER_BYTES = 2**20  # everything beside the prompt: forms, biases, stop texts, roles


def largest_message(max_model_len: int | None, longest: LongestToken | None) -> int:
    """In bytes; `max_model_len` is the most that the model allows, None where that is not known."""
    if max_model_len is None:
        return MOST_BYTES
    bytes_a_token = _BYTES_A_TOKEN if longest is None else longest.num_bytes
    return min(max(LEAST_BYTES, max_model_len * bytes_a_token + _OTHER_BYTES), MOST_BYTES)
