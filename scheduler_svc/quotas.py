"""What each tenant may have at once, and in a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from common.errors import Exhausted
from scheduler_svc.token_bucket import TokenBucket

_RETRY_AFTER_S = 1.0
_FIRST_SWEEP = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one tenant; None is no limit.

    A request is queued until its first token. Tokens of a minute are those of prompts, used when the request is
    accepted, and those of answers.
    """

    max_requests: int | None = None
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    tokens_per_minute: int | None = None


@dataclass(slots=True)
class Account:
    """What a tenant has now, its queued prompts in tokens."""

    limits: Limits
    bucket: TokenBucket
    requests: int = 0
    queued: int = 0
    queued_tokens: int = 0

    def check_seats(self, wanted: int) -> None:
        """Raise `Exhausted` where so many requests more are too many."""
        limits = (
            ("max_requests", "requests", self.requests, self.limits.max_requests),
            ("max_queued_requests", "queued requests", self.queued, self.limits.max_queued_requests),
        )
        for name, what, _, most in limits:
            _check_whole(name, what, wanted, most)
        for name, what, has, most in limits:
            _check(name, what, has, wanted, most)
        self.bucket.check(1)

    def check_prompt(self, num_tokens: int) -> None:
        """Raise `Exhausted` where a prompt is more than may be queued or used now."""
        most = self.limits.max_queued_tokens
        if most is not None and self.queued_tokens + num_tokens > most:
            raise Exhausted(
                f"the prompt has {num_tokens} tokens, and the tenant has {self.queued_tokens} in the queue, where it"
                f" may have {most} (max_queued_tokens)",
                retry_after_s=_RETRY_AFTER_S if num_tokens <= most else None,
            )
        self.bucket.check(num_tokens)


class Seat:
    """What one answer to a request takes of its tenant's limits, from its arrival to its end.

    It counts as `size` requests.
    """

    def __init__(self, account: Account, size: int = 1) -> None:
        self._account = account
        self._size = size
        self._num_prompt = 0
        self._num_output = 0
        self._queued, self._ended = True, False
        account.requests += size
        account.queued += size

    def accept(self, num_prompt_tokens: int) -> None:
        """Its prompt is known and goes into the queue. Raises `Exhausted` where that is too much."""
        self._account.check_prompt(num_prompt_tokens)
        self.restore(num_prompt_tokens, 0)

    def restore(self, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """It was accepted and has this many tokens, whatever the limits are."""
        self._num_prompt = num_prompt_tokens
        self._account.queued_tokens += num_prompt_tokens
        self._account.bucket.take(num_prompt_tokens)
        self.add_output(num_output_tokens)

    def add_output(self, num_tokens: int) -> None:
        """Its answer has this many tokens more."""
        if num_tokens > 0:
            self._leave_queue()
            self._num_output += num_tokens
            self._account.bucket.take(num_tokens)

    def end(self, num_output_tokens: int | None = None) -> None:
        """It takes nothing any more; without effect where it has ended.

        `num_output_tokens` are what is in its answer, where that is known: what came after a stop text is not.
        """
        if not self._ended:
            self._ended = True
            self._leave_queue()
            self._account.requests -= self._size
            if num_output_tokens is not None:
                self._account.bucket.take(num_output_tokens - self._num_output)

    def give_up(self) -> None:
        """It is not accepted after all, and has cost nothing."""
        if not self._ended:
            self._account.bucket.take(-self._num_prompt)
            self.end()

    def _leave_queue(self) -> None:
        if self._queued:
            self._queued = False
            self._account.queued -= self._size
            self._account.queued_tokens -= self._num_prompt


class Quotas:
    """Counts for every tenant. `limits_of` gives the limits that a new request meets, `clock` seconds."""

    def __init__(self, limits_of: Callable[[str], Limits], clock: Callable[[], float]) -> None:
        self._limits_of = limits_of
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._sweep_at = _FIRST_SWEEP

    @contextmanager
    def seats(self, tenant: str, num_answers: int = 1, num_sequences: int = 1) -> Iterator[list[Seat]]:
        """Seats for the answers of a new request, which counts as all of its sequences; given up where the `with` block
        raises. Raises `Exhausted`."""
        account = self.account(tenant)
        account.check_seats(num_sequences)
        seats = [Seat(account, size) for size in _sizes(num_answers, num_sequences)]
        try:
            yield seats
        except BaseException:
            for seat in seats:
                seat.give_up()
            raise

    def restored_seats(self, tenant: str, num_answers: int = 1, num_sequences: int = 1) -> list[Seat]:
        """Seats for the answers of a request that another process has accepted."""
        return [Seat(self.account(tenant), size) for size in _sizes(num_answers, num_sequences)]

    def account(self, tenant: str) -> Account:
        """What `tenant` has, with its limits as they are now."""
        limits = self._limits_of(tenant)
        account = self._accounts.get(tenant)
        if account is None:
            self._sweep()
            account = self._accounts[tenant] = Account(limits, TokenBucket(limits.tokens_per_minute, self._clock))
        account.limits = limits
        account.bucket.set_limit(limits.tokens_per_minute)
        return account

    def _sweep(self) -> None:
        """Forget, now and then, who has nothing: without keys, tenants are as many as clients think of."""
        if len(self._accounts) >= self._sweep_at:
            kept = {name: one for name, one in self._accounts.items() if one.requests or one.bucket.used}
            self._accounts = kept
            self._sweep_at = max(_FIRST_SWEEP, 2 * len(kept))


def _sizes(num_answers: int, num_sequences: int) -> list[int]:
    """What the answers count as: the first as all that become none, such as further beams of a search."""
    return [1 + num_sequences - num_answers, *[1] * (num_answers - 1)]


def _check_whole(name: str, what: str, wanted: int, most: int | None) -> None:
    """Where it never can be, there is no hint when to try again."""
    if most is not None and wanted > most:
        raise Exhausted(
            f"this request counts as {wanted}, and the tenant may have {most} {what} at once ({name}): ask for less, or"
            " for a higher limit"
        )


def _check(name: str, what: str, has: int, wanted: int, most: int | None) -> None:
    if most is not None and has + wanted > most:
        raise Exhausted(
            f"the tenant has {has} {what}, and may have {most} at once ({name}); this one counts as {wanted}; try again"
            " later",
            retry_after_s=_RETRY_AFTER_S,
        )
