"""What is kept of an accepted request."""

from __future__ import annotations

import gc
import time
import tracemalloc
from pathlib import Path

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
from tests.scheduler.text_folders import byte_level, write_folder


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
