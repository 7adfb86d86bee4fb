"""What the rows of a step ask to be done to their logits, as tensors: a function of their tokens and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from common.step import Sampling
from executor_svc.batch import to_device
from executor_svc.sequence import HeldSequence, Row, has_penalties
from kernels.adjust_logits import Adjustments, Cells, Penalties

_Rows = Sequence[tuple[int, HeldSequence]]
"""Rows of the logits and whose they are."""


def build_adjustments(rows: Sequence[Row], device: torch.device) -> Adjustments | None:
    """For the logits that `rows` draw from; None where nobody asks for any change."""
    asking = [(index, row.sequence) for index, row in enumerate(rows) if row.sequence.changes_logits]
    if not asking:
        return None
    biased = [(index, held) for index, held in asking if held.sampling.logit_bias]
    restricted = [(index, held) for index, held in asking if held.sampling.allowed_token_ids]
    biases = [bias for _, held in biased for _, bias in held.sampling.logit_bias]
    return Adjustments(
        penalties=_penalties([(index, held) for index, held in asking if has_penalties(held.sampling)], device),
        biased=_cells(biased, lambda held: (token_id for token_id, _ in held.sampling.logit_bias), device),
        biases=to_device(biases, np.float32, device) if biases else None,
        restricted=to_device([index for index, _ in restricted], np.int64, device) if restricted else None,
        allowed=_cells(restricted, lambda held: held.sampling.allowed_token_ids, device),
        banned=_cells(asking, banned_tokens, device),
    )


def banned_tokens(held: HeldSequence) -> Iterator[int]:
    """Tokens that the sequence may not draw next; one may come twice."""
    sampling = held.sampling
    yield from sampling.banned_token_ids
    if held.num_generated < sampling.min_tokens:
        yield from sampling.end_token_ids
    for *before, last in sampling.bad_words:
        length = len(before)
        if length <= held.num_generated and held.tokens[len(held.tokens) - length :] == before:
            yield last


def _cells(asking: _Rows, ids_of: Callable[[HeldSequence], Iterable[int]], device: torch.device) -> Cells | None:
    rows: list[int] = []
    token_ids: list[int] = []
    for index, held in asking:
        token_ids += ids_of(held)
        rows += [index] * (len(token_ids) - len(rows))
    if not rows:
        return None
    return Cells(to_device(rows, np.int64, device), to_device(token_ids, np.int64, device))


def _penalties(asking: _Rows, device: torch.device) -> Penalties | None:
    rows: list[int] = []
    samplings: list[Sampling] = []
    lengths: list[int] = []
    token_ids: list[int] = []
    counts: list[float] = []
    for index, held in asking:
        answer = Counter(held.tokens[held.num_prompt_tokens :])
        prompt = set(held.tokens[: held.num_prompt_tokens]) if held.sampling.repetition_penalty != 1.0 else set()
        prompt.difference_update(answer)
        rows.append(index)
        samplings.append(held.sampling)
        lengths.append(len(answer) + len(prompt))
        token_ids += [*answer, *prompt]
        counts += [*answer.values(), *[0] * len(prompt)]
    if not token_ids:
        return None

    def column(values: Sequence[int]) -> torch.Tensor:
        return to_device(values, np.int64, device)

    def numbers(values: Sequence[float]) -> torch.Tensor:
        return to_device(values, np.float32, device)

    return Penalties(
        rows=column(rows),
        repetition=numbers([sampling.repetition_penalty for sampling in samplings]),
        presence=numbers([sampling.presence_penalty for sampling in samplings]),
        frequency=numbers([sampling.frequency_penalty for sampling in samplings]),
        lengths=column(lengths),
        token_ids=column(token_ids),
        counts=numbers(counts),
    )
