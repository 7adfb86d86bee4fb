"""Requests that are cancelled at any moment: their neighbours notice nothing, and nothing of them stays."""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest

from citybus import Cancelled, FinishReason
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.e2e.field_cases.field import GREEDY, Field, Ride
from tests.harness import wait_until

VICTIM = [(13 * position) % 250 for position in range(160)]
NEIGHBOURS = [[200 + seat, 1, 2, 3] for seat in range(4)]
REPEATS = 128
"""Four of each way and place."""
OUTPUT = 12
ENDED = "e2e_request_latency_seconds_count"
"""Accepted requests that have ended, each counted once."""


class Neighbours:
    """Four who ask the same again and again, and compare."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.references = [field.reference(prompt, 60) for prompt in NEIGHBOURS]
        self.answers = 0
        self.wrong: list[object] = []
        self._over = threading.Event()

    @contextmanager
    def riding(self) -> Iterator[None]:
        """They ask while the block runs."""
        threads = [threading.Thread(target=self._ride, args=(seat,)) for seat in range(len(NEIGHBOURS))]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join(60)

    def _ride(self, seat: int) -> None:
        while not self._over.is_set():
            try:
                tokens = self.field.ask(NEIGHBOURS[seat], 60, cache_salt=uuid.uuid4().hex).token_ids
            except Exception as error:  # the thread would swallow it
                self.wrong.append(error)
                return
            if tokens != self.references[seat]:
                self.wrong.append((seat, tokens))
            self.answers += 1


def cancel_somewhere(field: Field, turn: int, salt: str, longest: float) -> None:
    """Begin the victim, and cancel it in one of the ways: at a moment, or at a token."""
    stream = field.client.generate(token_ids=VICTIM, max_tokens=OUTPUT, cache_salt=salt, **GREEDY)
    if turn % 8 == 0:  # before it is known whether it was accepted
        stream.cancel()
        return
    ride = Ride(stream)
    if turn % 8 == 1:  # as soon as it is accepted
        pass
    elif turn % 8 in (2, 3, 4, 5):
        time.sleep(random.Random(turn).uniform(0, longest))
    else:  # at the first token, in the middle, at the last token, and when it has ended
        ride.read_some((1, 5, OUTPUT, OUTPUT + 1)[turn // 8 % 4])
    stream.cancel()
    if turn % 2:
        stream.cancel()


def test_F17_many_cancels_among_four_neighbours(tight_field: Field) -> None:
    reference, neighbours = tight_field.reference(VICTIM, OUTPUT), Neighbours(tight_field)
    since, before = len(tight_field.bus.plans()), tight_field.bus.status().totals
    told, ended = tight_field.metric("request_success_total"), tight_field.metric(ENDED)
    with neighbours.riding():
        started = time.monotonic()
        tight_field.ask(VICTIM, OUTPUT, cache_salt="whole")
        longest = time.monotonic() - started
        for turn in range(REPEATS):
            salt = uuid.uuid4().hex
            cancel_somewhere(tight_field, turn, salt, longest)
            if turn % 5 == 0:  # what it left in the cache is whole
                assert tight_field.ask(VICTIM, OUTPUT, cache_salt=salt).token_ids == reference
    assert neighbours.wrong == []
    assert neighbours.answers >= 4
    tight_field.bus.wait_idle()
    totals = tight_field.bus.status().totals
    assert totals.finished - before.finished == totals.accepted - before.accepted
    assert tight_field.metric(ENDED) - ended == totals.accepted - before.accepted
    too_early = tight_field.metric("request_success_total") - told - (totals.accepted - before.accepted)
    assert 0 <= too_early <= REPEATS / 8, "only who is cancelled at once may have ended before it was accepted"
    check_every_phase(tight_field, since)


def check_every_phase(field: Field, since: int) -> None:
    """Sequences left once each, and the cancels came in the middle of prefills and of decodes."""
    computed, left = Counter[int](), Counter[int]()
    victims = set()
    for plan in field.bus.plans()[since:]:
        left.update(plan["finished"])
        for sequence, num_tokens in itertools.chain(plan["new"], plan["scheduled"]):
            computed[sequence] += num_tokens
            if num_tokens > len(NEIGHBOURS[0]):
                victims.add(sequence)
    assert set(left.values()) == {1}
    assert sum(computed[victim] < len(VICTIM) for victim in victims) >= 10
    assert sum(computed[victim] >= len(VICTIM) for victim in victims) >= 10


@pytest.mark.parametrize("after_s", [0.0, 0.02])
def test_F17_cancel_while_preempted(tight_field: Field, after_s: float) -> None:
    prompts = [[seat, 3, 4] for seat in range(10, 16)]
    references = [tight_field.reference(prompt, 220) for prompt in prompts[:5]]
    preempted = tight_field.bus.status().totals.preemptions
    with tight_field.paused():
        rides = [tight_field.start(prompt, 220, cache_salt=uuid.uuid4().hex) for prompt in prompts]
    wait_until(lambda: tight_field.bus.status().totals.preemptions > preempted, "somebody is preempted", 30)
    time.sleep(after_s)
    rides[-1].stream.cancel()
    assert [ride.read().token_ids for ride in rides[:5]] == references
    with pytest.raises(Cancelled):
        rides[-1].read()


def test_F17_cancel_while_queued(tight_field: Field) -> None:
    """By another client than the one that waits, which is told how it ended."""
    reference = tight_field.reference(VICTIM, OUTPUT)
    with tight_field.paused():
        seated = [tight_field.start([seat, 1, 2], 30) for seat in range(6)]
        queued = tight_field.start(VICTIM, OUTPUT, request_id="queued")
        wait_until(lambda: tight_field.bus.status().waiting >= 1, "somebody waits", 10)
        with grpc.insecure_channel(tight_field.bus.address) as channel:
            generation_pb2_grpc.GenerationServiceStub(channel).Cancel(pb.CancelRequest(request_id="queued"), timeout=10)
        answer = queued.read()
        assert answer.finish.reason is FinishReason.CANCELLED
        assert answer.token_ids == ()
    assert all(len(ride.read().token_ids) == 30 for ride in seated)
    assert tight_field.ask(VICTIM, OUTPUT).token_ids == reference


def test_F17_late_cancel_does_nothing(tight_field: Field) -> None:
    ride = tight_field.start(VICTIM, OUTPUT)
    completion = ride.read()
    for _ in range(2):
        ride.stream.cancel()
    assert ride.read() == completion
    assert len(completion.token_ids) == OUTPUT
