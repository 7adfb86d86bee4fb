"""Limits of tenants: counted exactly, whatever becomes of a request."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from common.errors import CitybusError, Exhausted
from scheduler_svc.charged import Charged
from scheduler_svc.core.request import FinishReason, Outcome, SequenceUpdate
from scheduler_svc.output_stream import TextStop
from scheduler_svc.quotas import Limits, Quotas, Seat


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sink:
    """Takes everything."""

    def push(self, update: SequenceUpdate) -> TextStop | None:
        return None

    def fail(self, error: CitybusError) -> None:
        return


def outcome(reason: FinishReason, num_output_tokens: int) -> Outcome:
    return Outcome(reason, 0, num_output_tokens, 0, 0, None, None, 0.0)


def accept(quotas: Quotas, tenant: str, num_prompt_tokens: int) -> Seat:
    with quotas.seats(tenant) as (seat,):
        seat.accept(num_prompt_tokens)
    return seat


def restored(quotas: Quotas, tenant: str, num_prompt_tokens: int, num_output_tokens: int) -> Seat:
    (seat,) = quotas.restored_seats(tenant)
    seat.restore(num_prompt_tokens, num_output_tokens)
    return seat


def refused(quotas: Quotas, tenant: str, num_prompt_tokens: int) -> Exhausted:
    with pytest.raises(Exhausted) as caught:
        accept(quotas, tenant, num_prompt_tokens)
    return caught.value


def test_requests_at_once() -> None:
    quotas = Quotas(lambda tenant: Limits(max_requests=2), Clock())
    first, second = accept(quotas, "a", 5), accept(quotas, "a", 5)
    error = refused(quotas, "a", 5)
    assert str(error) == (
        "the tenant has 2 requests, and may have 2 at once (max_requests); this one counts as 1; try again later"
    )
    assert error.retry_after_s == 1.0
    accept(quotas, "b", 5)
    first.add_output(1)
    refused(quotas, "a", 5)
    second.end()
    accept(quotas, "a", 5)
    refused(quotas, "a", 5)


def test_a_request_that_counts_as_several_gets_all_of_its_seats_or_none() -> None:
    quotas = Quotas(lambda tenant: Limits(max_requests=4, max_queued_requests=3), Clock())
    with quotas.seats("a", 3, 3) as seats:
        assert len(seats) == quotas.account("a").requests == 3
    with pytest.raises(Exhausted, match=r"has 3 requests, and may have 4 at once.*counts as 2; try") as caught:
        quotas.seats("a", 2, 2).__enter__()
    assert caught.value.retry_after_s == 1.0
    for count, words in ((4, "may have 3 queued requests"), (5, "may have 4 requests")):
        with pytest.raises(Exhausted, match=f"this request counts as {count}, and the tenant {words}") as caught:
            quotas.seats("a", count, count).__enter__()
        assert caught.value.retry_after_s is None, "it never can"
    assert quotas.account("a").requests == 3


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_search_counts_as_its_beams_until_the_last_answer_has_ended(is_restored: bool) -> None:
    quotas = Quotas(lambda tenant: Limits(max_requests=4), Clock())
    if is_restored:
        seats = quotas.restored_seats("a", 2, 4)
    else:
        with quotas.seats("a", 2, 4) as seats:
            pass
    account = quotas.account("a")
    assert (len(seats), account.requests, account.queued) == (2, 4, 4)
    seats[0].add_output(3)
    assert (account.requests, account.queued) == (4, 1)
    for seat in seats:
        seat.end(3)
    assert (account.requests, account.queued) == (0, 0)
    with pytest.raises(Exhausted, match="this request counts as 5, and the tenant may have 4 requests at once"):
        quotas.seats("a", 1, 5).__enter__()


def test_queued_requests_and_their_tokens() -> None:
    quotas = Quotas(lambda tenant: Limits(max_queued_requests=2, max_queued_tokens=10), Clock())
    first = accept(quotas, "a", 6)
    error = refused(quotas, "a", 5)
    assert "has 5 tokens, and the tenant has 6 in the queue, where it may have 10 (max_queued_tokens)" in str(error)
    assert error.retry_after_s == 1.0
    assert refused(quotas, "a", 11).retry_after_s is None, "it will never fit"
    second = accept(quotas, "a", 4)
    assert "max_queued_requests" in str(refused(quotas, "a", 1))
    first.add_output(1)  # it has begun
    third = accept(quotas, "a", 6)
    second.end()  # in the queue
    third.end()
    account = quotas.account("a")
    assert (account.requests, account.queued, account.queued_tokens) == (1, 0, 0)


def test_tokens_of_a_minute_come_back_evenly() -> None:
    clock = Clock()
    quotas = Quotas(lambda tenant: Limits(tokens_per_minute=60), clock)
    seat = accept(quotas, "a", 40)
    error = refused(quotas, "a", 30)
    assert "has 20 tokens left and 30 are needed; it may use 60 a minute (tokens_per_minute)" in str(error)
    assert error.retry_after_s == 10.0
    clock.now += 9.5
    assert refused(quotas, "a", 30).retry_after_s == 0.5
    clock.now += 0.5
    accept(quotas, "a", 30)
    seat.add_output(30)  # more than there are: an answer is not cut
    error = refused(quotas, "a", 1)
    assert "has 0 tokens left" in str(error)
    assert error.retry_after_s == 31.0
    assert refused(quotas, "a", 61).retry_after_s == 31.0, "before the prompt is known"
    clock.now += 90.0
    assert refused(quotas, "a", 61).retry_after_s is None, "it will never fit"
    accept(quotas, "a", 60)
    accept(quotas, "b", 60)


def test_a_request_that_is_not_taken_in_costs_nothing() -> None:
    quotas = Quotas(lambda tenant: Limits(max_requests=1, tokens_per_minute=60), Clock())
    for _ in range(3):
        with contextlib.suppress(KeyError), quotas.seats("a") as (seat,):
            seat.accept(60)
            raise KeyError
    assert quotas.account("a").bucket.used == 0.0
    accept(quotas, "a", 60)


def test_tokens_behind_a_stop_text_are_none_of_the_answer() -> None:
    quotas = Quotas(lambda tenant: Limits(tokens_per_minute=600), Clock())
    sink = Charged(Sink(), accept(quotas, "a", 10))
    sink.push(SequenceUpdate(1, 0, (1, 2, 3, 4)))
    assert quotas.account("a").bucket.used == 14.0
    sink.push(SequenceUpdate(1, 4, (), outcome(FinishReason.STOP, 2)))
    assert quotas.account("a").bucket.used == 12.0


def test_limits_are_those_of_the_moment() -> None:
    limits = Limits()
    quotas = Quotas(lambda tenant: limits, Clock())
    seats = [accept(quotas, "a", 5) for _ in range(3)]
    limits = Limits(max_requests=3, tokens_per_minute=100)
    refused(quotas, "a", 5)
    seats[0].end()
    accept(quotas, "a", 5)
    assert quotas.account("a").bucket.used == 5.0
    limits = Limits()
    accept(quotas, "a", 500)
    limits = Limits(max_requests=0)
    assert refused(quotas, "a", 5).retry_after_s is None


def test_what_a_process_before_has_accepted_counts() -> None:
    quotas = Quotas(lambda tenant: Limits(max_requests=2, max_queued_tokens=10, tokens_per_minute=60), Clock())
    running, queued = restored(quotas, "a", 50, 20), restored(quotas, "a", 10, 0)
    account = quotas.account("a")
    assert (account.requests, account.queued, account.queued_tokens, account.bucket.used) == (2, 1, 10, 80.0)
    refused(quotas, "a", 1)
    running.end()
    queued.end()
    assert (account.requests, account.queued, account.queued_tokens) == (0, 0, 0)


def test_tenants_that_have_nothing_are_forgotten() -> None:
    quotas = Quotas(lambda tenant: Limits(max_requests=1), Clock())
    kept = [accept(quotas, f"kept {number}", 1) for number in range(3)]
    for number in range(5000):
        accept(quotas, f"tenant {number}", 1).end()
    assert len(quotas._accounts) <= 1024
    for number, seat in enumerate(kept):
        refused(quotas, f"kept {number}", 1)
        seat.end()


class Requests(RuleBasedStateMachine):
    """Requests of two tenants that end in every way there is, beside a count from their states alone."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = Quotas(lambda tenant: Limits(tokens_per_minute=10**9), lambda: 0.0)
        self.live: list[tuple[str, int, list[int], Charged]] = []
        self.used = {"a": 0, "b": 0}

    @rule(tenant=st.sampled_from("ab"), num_prompt=st.integers(1, 9), num_output=st.integers(0, 3), new=st.booleans())
    def arrive(self, tenant: str, num_prompt: int, num_output: int, new: bool) -> None:
        num_output = 0 if new else num_output
        seat = accept(self.quotas, tenant, num_prompt) if new else None
        seat = seat or restored(self.quotas, tenant, num_prompt, num_output)
        self.live.append((tenant, num_prompt, [0] * num_output, Charged(Sink(), seat)))
        self.used[tenant] += num_prompt + num_output

    @rule(tenant=st.sampled_from("ab"), num_prompt=st.integers(1, 9), known=st.booleans())
    def turn_back(self, tenant: str, num_prompt: int, known: bool) -> None:
        with contextlib.suppress(KeyError), self.quotas.seats(tenant) as (seat,):
            if known:
                seat.accept(num_prompt)
            raise KeyError

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0), tokens=st.lists(st.just(0), min_size=1, max_size=3))
    def go_on(self, index: int, tokens: list[int]) -> None:
        tenant, _, output, sink = self.live[index % len(self.live)]
        sink.push(SequenceUpdate(1, len(output), tuple(tokens)))
        output += tokens
        self.used[tenant] += len(tokens)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0), reason=st.sampled_from([*FinishReason, None]), surplus=st.integers(0, 2))
    def end(self, index: int, reason: FinishReason | None, surplus: int) -> None:
        tenant, _, output, sink = self.live.pop(index % len(self.live))
        surplus = min(surplus, len(output)) if reason is FinishReason.STOP else 0
        if reason is None:
            sink.fail(CitybusError("away"))
        else:
            sink.push(SequenceUpdate(1, len(output), (), outcome(reason, len(output) - surplus)))
        sink.fail(CitybusError("the process ends"))  # nothing is counted twice
        self.used[tenant] -= surplus

    @invariant()
    def counts(self) -> None:
        for tenant in "ab":
            account = self.quotas.account(tenant)
            live = [(num_prompt, output) for owner, num_prompt, output, _ in self.live if owner == tenant]
            queued = [num_prompt for num_prompt, output in live if not output]
            assert (account.requests, account.queued, account.queued_tokens) == (len(live), len(queued), sum(queued))
            assert account.bucket.used == self.used[tenant]


Requests.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRequests = Requests.TestCase
