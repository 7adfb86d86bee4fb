"""How many answers a request wants, and by what search; or which field is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

from citybus.v1 import generation_pb2 as pb
from common.errors import InvalidRequest
from common.logprobs import MAX_LOGPROBS
from common.step import ExecutorInfo
from scheduler_svc.core.beams import MAX_WIDTH, BeamParams, EarlyStopping

MAX_SAMPLES = 64
MAX_LENGTH_PENALTY = 10.0

_EARLY_STOPPING = {
    pb.EARLY_STOPPING_UNSPECIFIED: EarlyStopping.HEURISTIC,
    pb.EARLY_STOPPING_HEURISTIC: EarlyStopping.HEURISTIC,
    pb.EARLY_STOPPING_FULL: EarlyStopping.FULL,
    pb.EARLY_STOPPING_NEVER: EarlyStopping.NEVER,
}


@dataclass(frozen=True, slots=True)
class AnswerParams:
    """`num_answers` are told: the best of `num_samples`, where these are more, or those of the search `beams`."""

    num_answers: int = 1
    num_samples: int = 1
    beams: BeamParams | None = None

    @property
    def num_sequences(self) -> int:
        """Sequences it takes."""
        return self.num_samples if self.beams is None else self.beams.width

    @property
    def is_ranked(self) -> bool:
        """Whether only the best samples are told."""
        return self.num_samples > self.num_answers


def answer_params_of(request: pb.GenerateRequest, model: ExecutorInfo) -> AnswerParams:
    """What `request` asks for. Raises `InvalidRequest`."""
    samples = request.samples
    n = samples.n if samples.HasField("n") else 1
    if not 1 <= n <= MAX_SAMPLES:
        raise InvalidRequest(f"samples.n must be from 1 to {MAX_SAMPLES}")
    if request.HasField("beam_search"):
        return AnswerParams(n, n, _beams(request, n, model))
    best_of = samples.best_of if samples.HasField("best_of") else n
    if not n <= best_of <= MAX_SAMPLES:
        raise InvalidRequest(f"samples.best_of must be from samples.n, which is {n}, to {MAX_SAMPLES}")
    return AnswerParams(n, best_of)


def check_search(beams: BeamParams, stop_token_ids: frozenset[int], model: ExecutorInfo) -> None:
    """Raises `InvalidRequest` where a step cannot tell as many tokens as the search has to know."""
    most = min(MAX_LOGPROBS, model.vocab_size)
    if beams.width + len(stop_token_ids) > most:
        raise InvalidRequest(
            f"beam_search.width: with {len(stop_token_ids)} tokens that end an answer it must be at most"
            f" {most - len(stop_token_ids)}"
        )


def _beams(request: pb.GenerateRequest, num_answers: int, model: ExecutorInfo) -> BeamParams:
    search = request.beam_search
    most = min(MAX_WIDTH, model.max_sequences, model.max_step_tokens)
    if not 2 <= search.width <= most:
        raise InvalidRequest(f"beam_search.width must be from 2 to {most}")
    if num_answers > search.width:
        raise InvalidRequest(f"samples.n must be at most beam_search.width, which is {search.width}")
    penalty = search.length_penalty if search.HasField("length_penalty") else 1.0
    if not math.isfinite(penalty) or abs(penalty) > MAX_LENGTH_PENALTY:
        raise InvalidRequest(
            f"beam_search.length_penalty must be from -{MAX_LENGTH_PENALTY:g} to {MAX_LENGTH_PENALTY:g}"
        )
    if search.early_stopping not in _EARLY_STOPPING:
        raise InvalidRequest("beam_search.early_stopping must be one of EarlyStopping")
    _check_alone(request)
    return BeamParams(search.width, num_answers, penalty, _EARLY_STOPPING[search.early_stopping])


def _check_alone(request: pb.GenerateRequest) -> None:
    """A search draws nothing, so nothing says how."""
    names = [f"sampling.{field.name}" for field, _ in request.sampling.ListFields() if field.name != "seed"]
    names += [f"output.{field.name}" for field, _ in request.output.ListFields()]
    names += ["stopping.stop"] if request.stopping.stop else []
    names += ["stopping.min_tokens"] if request.stopping.min_tokens else []
    names += ["samples.best_of"] if request.samples.HasField("best_of") else []
    names += ["structured_output"] if request.HasField("structured_output") else []
    if names:
        raise InvalidRequest(f"{names[0]} cannot be set together with beam_search")
