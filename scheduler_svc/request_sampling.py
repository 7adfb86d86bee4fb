"""How the tokens of a request are drawn, now that the model's end tokens and spellings are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from common.errors import InvalidRequest
from common.step import ExecutorInfo, Sampling
from scheduler_svc.answer_params import check_search
from scheduler_svc.core.request import Request
from scheduler_svc.sample_seeds import sample_seed
from scheduler_svc.sampling_limits import with_bans
from scheduler_svc.validation import GenerateCall


def resolved_sampling(
    call: GenerateCall, stop_token_ids: frozenset[int], bad_words: Sequence[tuple[int, ...]], model: ExecutorInfo
) -> Sampling:
    """The sampling of a call whose answer ends with `stop_token_ids`. Raises `InvalidRequest`."""
    sampling = with_bans(_scored(call, stop_token_ids, model), stop_token_ids, bad_words, model.vocab_size)
    return _constrained(call, sampling, stop_token_ids)


def sample_of(request: Request, index: int, sequence_id: int) -> Request:
    """Sample number `index` of a request."""
    sampling = replace(request.sampling, seed=sample_seed(request.sampling.seed, index))
    if index > 0:
        sampling = replace(sampling, num_prompt_logprobs=None)
    return replace(request, sequence_id=sequence_id, sampling=sampling)


def _scored(call: GenerateCall, stop_token_ids: frozenset[int], model: ExecutorInfo) -> Sampling:
    """The sampling, with the log-probabilities that ranking or a search takes. Raises `InvalidRequest`."""
    beams = call.answers.beams
    if beams is not None:
        check_search(beams, stop_token_ids, model)
        return Sampling(temperature=0.0, seed=call.sampling.seed, num_logprobs=beams.width + len(stop_token_ids))
    if call.answers.is_ranked and call.sampling.num_logprobs is None:
        return replace(call.sampling, num_logprobs=0)
    return call.sampling


def _constrained(call: GenerateCall, sampling: Sampling, stop_token_ids: frozenset[int]) -> Sampling:
    """How the tokens of `call` are drawn: a form ends with what ends the answer."""
    if call.form is None:
        return sampling
    if not stop_token_ids:
        raise InvalidRequest(
            "structured_output needs a token that ends the answer where the form is complete: leave ignore_eos out, or"
            " set stop_token_ids"
        )
    return replace(sampling, grammar=replace(call.form.grammar, end_token_ids=tuple(sorted(stop_token_ids))))
