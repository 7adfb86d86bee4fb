"""Clients that go away, through every door and in every phase: at once nothing is computed for them any more."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from citybus import Client, Stream
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.crowd import crowd
from tests.e2e.field_cases.field import Field, running_field
from tests.e2e.field_cases.link import Link
from tests.harness import Bus, wait_until

ANSWER = 5000
GONE_S = 3.0
"""The promise is two steps and 1 s; the rest is for a busy machine. The answers would take longer by far."""

Door = Callable[[Field, int], AbstractContextManager[Callable[[], object]]]
"""Asks with a prompt of that many tokens, and gives what makes the client go away."""


@pytest.fixture(scope="module")
def long_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("long-bus")
    model = write_tiny(folder / "tiny", max_model_len=16384)
    with running_field(model, folder / "bus", executor=("--num-blocks", 1100, "--max-step-tokens", 16)) as field:
        yield field


@pytest.fixture
def long_field(long_session: Field) -> Iterator[Field]:
    """TINY, L = 16,384, C = 16."""
    yield long_session
    long_session.check()


def prompt_of(length: int) -> list[int]:
    return [(7 * position) % 250 for position in range(length)]


def ask(client: Client, length: int) -> Stream:
    return client.generate(
        token_ids=prompt_of(length), max_tokens=ANSWER, cache_salt=uuid.uuid4().hex, temperature=0, ignore_eos=True
    )


@contextmanager
def call_cancelled(field: Field, length: int) -> Iterator[Callable[[], object]]:
    with ask(field.client, length) as stream:
        yield stream.cancel


@contextmanager
def channel_closed(field: Field, length: int) -> Iterator[Callable[[], object]]:
    with Client(field.bus.address) as client:
        stream = ask(client, length)
        yield client.close
        del stream


@contextmanager
def process_killed(field: Field, length: int) -> Iterator[Callable[[], object]]:
    with crowd(field.bus.address, 1, length, ANSWER) as process:
        yield process.kill


@contextmanager
def socket_half_closed(field: Field, length: int) -> Iterator[Callable[[], object]]:
    with Link(field.bus.address) as link, Client(link.address, reconnect=None) as client:
        stream = ask(client, length)
        yield link.half_close
        del stream


def accepted(field: Field, before: int) -> bool:
    return field.bus.status().totals.accepted > before


@pytest.mark.parametrize("phase", ["right_after_acceptance", "prefill", "decode"])
@pytest.mark.parametrize("door", [call_cancelled, channel_closed, process_killed, socket_half_closed])
def test_F32_nothing_is_computed_for_who_is_gone(long_field: Field, door: Door, phase: str) -> None:
    bus, before = long_field.bus, long_field.bus.status().totals
    cancelled = long_field.metric("request_success_total", finished_reason="cancelled")
    length = 20 if phase == "decode" else 8000
    with door(long_field, length) as leave:
        wait_until(lambda: accepted(long_field, before.accepted), "it is accepted", 30)
        if phase == "prefill":
            wait_until(lambda: bus.status().totals.steps > before.steps + 20, "its prefill is under way", 30)
        if phase == "decode":
            wait_until(lambda: bus.status().totals.generated_tokens > before.generated_tokens + 20, "it decodes", 30)
        assert bus.status().running == 1
        leave()
        bus.wait_idle(GONE_S)
        after = bus.status().totals
    assert after.finished == after.accepted == before.accepted + 1
    assert after.generated_tokens - before.generated_tokens < (ANSWER if phase == "decode" else 1)
    assert after.steps - before.steps < (ANSWER if phase == "decode" else 500)
    assert long_field.metric("request_success_total", finished_reason="cancelled") == cancelled + 1
    time.sleep(0.2)
    assert bus.status().totals == after, "nothing more is computed"


def no_plan_for(bus: Bus, seconds: float) -> bool:
    sent = len(bus.plans())
    time.sleep(seconds)
    return len(bus.plans()) == sent


def test_F32_only_the_plans_in_flight_still_compute(long_field: Field) -> None:
    """The executor stands still while the client goes, so that it is known which plans were sent before."""
    bus, before = long_field.bus, long_field.bus.status().totals
    ride = long_field.start([1, 2, 3], ANSWER)
    ride.read_some(5)
    with long_field.paused():
        wait_until(lambda: no_plan_for(bus, 0.3), "what was computed before is taken in", 30)
        sent = len(bus.plans())
        ride.stream.cancel()
        wait_until(lambda: bus.status().totals.finished > before.finished, "it has ended", GONE_S)
        assert len(bus.plans()) <= sent
    bus.wait_idle(GONE_S)
    after = bus.plans()[sent:]
    assert [plan["new"] + plan["scheduled"] for plan in after] == [[]] * len(after)
    assert sum(len(plan["finished"]) for plan in after) == 1


def test_F32_who_is_queued_leaves_the_queue(tight_field: Field) -> None:
    before = tight_field.bus.status().totals
    with tight_field.paused():
        rides = [tight_field.start([seat, 1], 250) for seat in range(6)]
        queued = tight_field.start([7] * 9, 200)
        queued.stream.cancel()
        wait_until(lambda: tight_field.bus.status().totals.finished > before.finished, "it has left", GONE_S)
    for ride in rides:
        assert len(ride.read().token_ids) == 250
    assert tight_field.bus.status().totals.prompt_tokens == before.prompt_tokens + 6 * 2, "it never boarded"
