"""What is kept of an accepted request."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from citybus.v1 import generation_pb2 as pb
from common.metrics import SchedulerMetrics
from scheduler_svc.acceptance import Acceptance
from scheduler_svc.model_files import read_model_files
from scheduler_svc.prompts import PromptEncoder
from scheduler_svc.ride import Ride
from scheduler_svc.tokenizer import Tokenizer
from scheduler_svc.validation import validate_generate
from tests.scheduler.scripted_loop import INFO
from tests.scheduler.text_folders import EOS, byte_level, write_folder


@pytest.mark.parametrize(
    "asked",
    [
        {"structured_output": pb.StructuredOutput(regex="a")},
        {"beam_search": pb.BeamSearchParams(width=2)},
        {"stopping": pb.StopParams(min_tokens=1)},
    ],
)
def test_an_answer_ends_with_no_token_that_the_model_does_not_have(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Some tokenizers know end tokens that the weights do not: the executor would refuse every plan that names one."""
    outside = INFO.vocab_size + 3
    files = read_model_files(write_folder(tmp_path, generation_eos=[outside, 7], chat_template=None))
    assert files.eos_token_ids == {EOS, 7, outside}
    encoder = PromptEncoder(Tokenizer(files), None)
    acceptance = Acceptance(encoder, files.eos_token_ids, SchedulerMetrics(CollectorRegistry()), None, time.monotonic)
    message = pb.GenerateRequest(text="x", **asked)
    call = validate_generate(message, INFO)
    accepted = acceptance.accept(message, call, (1,), sequence_ids=[1, 2], arrival=0.0, model=INFO)
    encoder.close()
    request, sampling = accepted.requests[0], accepted.requests[0].sampling
    assert request.stop_token_ids == {EOS, 7}
    assert sampling.grammar is None or sampling.grammar.end_token_ids == (7, EOS)
    assert sampling.end_token_ids == ((7, EOS) if sampling.min_tokens else ())
    assert request.beams is None or sampling.num_logprobs == 2 + 2


def test_a_ride_that_is_kept_for_late_readers_does_not_keep_its_prompt(tmp_path: Path) -> None:
    files = read_model_files(write_folder(tmp_path, byte_level(bos=True, eos_special=True), chat_template=None))
    encoder = PromptEncoder(Tokenizer(files), None)
    metrics = SchedulerMetrics(CollectorRegistry())
    acceptance = Acceptance(encoder, files.eos_token_ids, metrics, None, time.monotonic)

    def ride(number: int) -> Ride:
        message = pb.GenerateRequest(text="x" * 100_000, reconnect_grace_ms=1000)
        call, prompt = validate_generate(message, INFO), tuple(range(1000, 101_000))
        accepted = acceptance.accept(message, call, prompt, sequence_ids=[number], arrival=0.0, model=INFO)
        return accepted.ride

    ride(0)
    gc.collect()
    tracemalloc.start()
    try:
        rides = [ride(number) for number in range(1, 5)]
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        encoder.close()
    assert kept < 20_000 * len(rides)
