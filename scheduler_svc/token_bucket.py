"""How many tokens a tenant may still use now."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import Exhausted


class TokenBucket:
    """Holds a minute's tokens, and fills up evenly: what is used is back a minute later.

    `per_minute` None: there is no limit, and nothing is counted. `clock` gives seconds.
    """

    def __init__(self, per_minute: int | None, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._used = 0.0
        self._as_of = clock()

    @property
    def used(self) -> float:
        """Tokens that are not back yet; more than there are where an answer took more."""
        now, rate = self._clock(), (self._per_minute or 0) / 60
        self._used = max(0.0, self._used - (now - self._as_of) * rate)
        self._as_of = now
        return self._used

    def set_limit(self, per_minute: int | None) -> None:
        """From now on."""
        self._used = 0.0 if per_minute is None else self.used
        self._per_minute = per_minute

    def take(self, num_tokens: int) -> None:
        """Use tokens, whether they are there or not; a negative number gives them back."""
        if self._per_minute is not None:
            self._used = max(0.0, self.used + num_tokens)

    def check(self, num_tokens: int) -> None:
        """Raise `Exhausted`, which says when to come again, where there are less."""
        if self._per_minute is None or (missing := self.used + num_tokens - self._per_minute) <= 0:
            return
        left = max(0, int(self._per_minute - self._used))
        raise Exhausted(
            f"the tenant has {left} tokens left and {num_tokens} are needed; it may use {self._per_minute} a minute"
            " (tokens_per_minute)",
            retry_after_s=missing * 60 / self._per_minute if num_tokens <= self._per_minute else None,
        )
