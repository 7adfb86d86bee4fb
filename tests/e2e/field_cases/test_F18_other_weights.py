"""Other weights under the same name: nothing that was computed with the weights before is ever found again.

There are no adapters here: the executor of one scheduler is restarted over another folder of the same name. Executors
are real engines behind real servers in the process of the test. One over a folder with another tokenizer is not used.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from citybus import Unavailable
from common.metrics import ExecutorMetrics
from executor_svc.config import Config
from executor_svc.startup import load_engine
from scheduler_svc.reach import RETRY_S
from tests.checkpoints import write_tiny
from tests.contract.wire_executor import Served
from tests.e2e.field_cases.field import Field, InProcess, is_serving, scheduler_field
from tests.e2e.field_cases.link import Link
from tests.harness import wait_until

PROMPT = [position * 11 % 250 for position in range(6 * 16)]
SALT = "kept"


@contextmanager
def serving(model: Path, link: Link, field: Field | None) -> Iterator[None]:
    """An executor that has just started, where the one before was; the scheduler of `field` has found it."""
    settings = Config(model=model, num_threads=1, num_blocks=64)
    registry = CollectorRegistry()
    with Served(load_engine(settings, ExecutorMetrics(registry))) as served:
        link.target = served.target
        link.mend()
        if field is not None:
            wait_until(lambda: field.bus.status().executor_connected, "the scheduler has found the new executor", 60)
        yield
        link.cut()


def ask(field: Field, cold: dict[Path, tuple[int, ...]], model: Path) -> None:
    """As on a cold cache, then as REF from the cache of these weights."""
    cold.setdefault(model, field.reference(PROMPT, 12, model="tiny", cache_salt=uuid.uuid4().hex))
    for cached in (0, len(PROMPT) - 1):
        answer = field.ask(PROMPT, 12, cache_salt=SALT, model="tiny")
        assert answer.token_ids == cold[model]
        assert answer.finish.usage.cached_tokens == cached


def test_F18_replaced_weights_find_nothing_of_the_old_ones(tmp_path: Path) -> None:
    first, second = (write_tiny(tmp_path / name / "tiny", max_model_len=256, seed=ord(name)) for name in "ab")
    cold: dict[Path, tuple[int, ...]] = {}
    with Link() as link, ExitStack() as stack:
        with serving(first, link, None):
            field = stack.enter_context(scheduler_field(first, tmp_path / "bus", InProcess(link.address)))
            ask(field, cold, first)
        for model in (second, first, second):
            with serving(model, link, field):
                ask(field, cold, model)
    assert cold[first] != cold[second]


def waits(field: Field, level: str) -> list[dict[str, Any]]:
    """What the scheduler has said, at that level, of why it waits."""
    return [event for event in field.bus.scheduler.events("waiting for the executor") if event["level"] == level]


def test_an_executor_of_another_tokenizer_is_not_used(tmp_path: Path) -> None:
    """It is named once, whatever was waited for before; what is live waits for the right one."""
    ours = write_tiny(tmp_path / "ours", max_model_len=256)
    other = write_tiny(tmp_path / "other", max_model_len=256, bos=False)
    with Link() as link, ExitStack() as stack:
        with serving(ours, link, None):
            field = stack.enter_context(scheduler_field(ours, tmp_path / "bus", InProcess(link.address)))
            reference = field.reference(PROMPT, 12)
            link.hang()
            ride = field.start(PROMPT, 12)
        wait_until(lambda: bool(waits(field, "info")), "the executor is missed", 30)
        with serving(other, link, None):
            wait_until(lambda: bool(waits(field, "error")), "the other one is refused", 30)
            time.sleep(3 * RETRY_S)
            (refusal,) = waits(field, "error")
            assert "executor serves other (tokenizer " in refusal["reason"]
            assert "this scheduler ours (tokenizer " in refusal["reason"]
            assert "start both with the same model folder" in refusal["reason"]
            assert not is_serving(field.bus.address)
            with pytest.raises(Unavailable):
                field.ask(PROMPT, 12)
        with serving(ours, link, field):
            assert ride.read().token_ids == reference
            field.check()
