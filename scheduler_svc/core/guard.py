"""The live policy, behind a guard: whatever it answers, the core gets something that makes sense, and in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

from scheduler_svc.core.answers import PolicyFault, all_waiting, sheddable, some_of, within
from scheduler_svc.core.policy import Charge, Policy, Reservation, SequenceView, StepView
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.starvation import StarvationWatch

Answer = TypeVar("Answer")

MAX_PREDECESSORS = 8
"""Policies kept to roll back to."""

STARVATION_S = 120.0
"""Default of the longest wait while others pass, in seconds."""

_DEFAULT = Policy()
_MAX_REASON = 200


class OverTime(BaseException):
    """A decision took longer than it may. Not an `Exception`: a policy that catches those must not catch this."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """`policy` decides in the place of `before`; `fault` says what that one did wrong, None where it was told to go."""

    policy: str
    before: str
    fault: str | None = None


class Observer(Protocol):
    """Told what the live policy has decided, in the middle of a step: it must neither raise nor change anything."""

    def on_admission(
        self, waiting: ListOf[SequenceView], step: StepView, now: float, live: ListOf[SequenceView], alone: bool
    ) -> None:
        """`live` are to board."""

    def on_victim(self, running: ListOf[SequenceView], now: float, live: SequenceView) -> None:
        """`live` gives up its blocks."""

    def on_charge(self, charges: ListOf[Charge], now: float) -> None:
        """A step computes this."""


class GuardedPolicy:
    """Asks the live policy, checks what it says, and answers with the default where it fails.

    A policy that fails is not asked again; before the next step (`settle`) it is rolled back to the one before.

    Args:
        policy: the live one.
        time_limit: entered around every decision; raises `OverTime` within or at the end of one that takes too long.
        starvation_s: the longest a request may wait while others pass (`StarvationWatch`), in seconds.
        on_change: told of every change.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        time_limit: AbstractContextManager[object] | None = None,
        starvation_s: float = STARVATION_S,
        on_change: Callable[[PolicyChange], None] = lambda change: None,
    ) -> None:
        self.live = policy
        self.fault: str | None = None
        self.observer: Observer | None = None
        self._time_limit = nullcontext() if time_limit is None else time_limit
        self._watch = StarvationWatch(starvation_s)
        self._on_change = on_change
        self._predecessors: list[Policy] = []

    @property
    def name(self) -> str:
        """Name of the live policy."""
        return self.live.name

    @property
    def sheds(self) -> bool:
        """Whether the live policy ever sheds anybody."""
        return type(self.live).shed is not Policy.shed

    # Changes, between two steps

    def set(self, policy: Policy, state: Mapping[str, object] | None = None) -> None:
        """Let `policy` decide from now on, with `state`; None is that of the one before.

        Raises `PolicyFault`, and the one before stays, where it cannot take that over.
        """
        state = self.exported() if state is None else state
        try:
            self._called(lambda: policy.import_state(state))
        except PolicyFault as fault:
            raise PolicyFault(f"policy {policy.name} cannot take over: {fault}") from fault
        if self.fault is None:
            self._predecessors = [*self._predecessors, self.live][-MAX_PREDECESSORS:]
        self._replace(policy, None)

    def settle(self) -> None:
        """Roll back where the live policy has failed."""
        if self.fault is None:
            return
        predecessor, state = self._predecessors.pop() if self._predecessors else Policy(), self.exported()
        try:
            self._called(lambda: predecessor.import_state(state))
        except PolicyFault:
            predecessor = Policy()
        self._replace(predecessor, self.fault)

    def exported(self) -> dict[str, object]:
        """The live policy's state; nothing where it fails at that too."""
        try:
            return self._called(lambda: dict(self.live.export_state()))
        except PolicyFault:
            return {}

    def _replace(self, policy: Policy, fault: str | None) -> None:
        change = PolicyChange(policy.name, self.live.name, fault)
        self.live, self.fault = policy, None
        self._watch.start_over()
        self._on_change(change)

    # Decisions

    def admission_order(
        self, waiting: ListOf[SequenceView], step: StepView, now: float, *, alone: bool
    ) -> list[SequenceView]:
        """As `Policy.admission_order`: at most as many as there are seats.

        Where the step has nothing else to do and nobody runs (`alone`), a policy cannot leave everybody behind.
        """

        def ask(policy: Policy) -> list[SequenceView]:
            order = all_waiting(islice(policy.admission_order(waiting, step, now), step.num_seats))
            if alone and not order:
                raise PolicyFault("it lets nobody board, and nobody runs")
            return order

        order = self._ask("admission_order", ask)
        if self.observer is not None:
            self.observer.on_admission(waiting, step, now, order, alone)
        return order

    def token_budget(self, step: StepView, now: float) -> int:
        """As `Policy.token_budget`."""
        return self._ask("token_budget", lambda policy: within(policy.token_budget(step, now), step.max_tokens))

    def boarding_reserve(self, step: StepView, now: float) -> int:
        """As `Policy.boarding_reserve`."""
        return self._ask("boarding_reserve", lambda policy: within(policy.boarding_reserve(step, now), step.max_tokens))

    def prefill_order(self, prefills: ListOf[SequenceView], now: float) -> list[SequenceView]:
        """As `Policy.prefill_order`, with who was left out at the end."""

        def ask(policy: Policy) -> list[SequenceView]:
            order = some_of(policy.prefill_order(prefills, now), prefills)
            return order + [view for view in prefills if view not in order]

        return self._ask("prefill_order", ask)

    def victim(self, running: ListOf[SequenceView], now: float) -> SequenceView:
        """As `Policy.victim`."""
        victim = self._ask("victim", lambda policy: some_of([policy.victim(running, now)], running)[0])
        if self.observer is not None:
            self.observer.on_victim(running, now, victim)
        return victim

    def shed(self, waiting: ListOf[SequenceView], now: float) -> list[SequenceView]:
        """As `Policy.shed`."""
        return self._ask("shed", lambda policy: sheddable(policy.shed(waiting, now)))

    def charge(self, charges: ListOf[Charge], now: float) -> None:
        """As `Policy.charge`."""
        self._ask("charge", lambda policy: policy.charge(charges, now))
        if self.observer is not None:
            self.observer.on_charge(charges, now)

    def reservation(self, running: ListOf[SequenceView]) -> Reservation | None:
        """As `Policy.reservation`."""
        return self._ask("reservation", lambda policy: policy.reservation(running))

    def watch(self, waiting: ListOf[Sequence], boarded: ListOf[Sequence], now: float) -> None:
        """Notice who starves, after `boarded` have boarded and left `waiting` behind."""
        starved = self._watch.starved(waiting, boarded, now)
        if starved is not None and self.fault is None:
            self.fault = f"request waits for {now - starved.waiting_since:.0f} s while later ones pass"

    def _ask(self, decision: str, ask: Callable[[Policy], Answer]) -> Answer:
        if self.fault is None:
            try:
                return self._called(lambda: ask(self.live))
            except PolicyFault as fault:
                self.fault = f"{decision}: {fault}"
        return ask(_DEFAULT)

    def _called(self, call: Callable[[], Answer]) -> Answer:
        """What a policy answers, within its time. Raises `PolicyFault`, whatever that policy raises."""
        try:
            with self._time_limit:
                return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit() in a policy must not end the service
            raise PolicyFault(_reason(error)) from error


def _reason(error: BaseException) -> str:
    if isinstance(error, (PolicyFault, OverTime)):
        return str(error)
    return f"{type(error).__name__}: {error}"[:_MAX_REASON]
