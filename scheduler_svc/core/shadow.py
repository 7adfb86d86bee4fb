"""What another policy would have decided, asked beside the live one and never followed."""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.policy import Charge, SequenceView, StepView

MAX_TENANTS = 32
OTHERS = "other"
"""The tenants beyond the first `MAX_TENANTS`."""


@dataclass(slots=True)
class Moves:
    """Places that the sequences of a tenant lost (gained where less than 0), over so many comparisons."""

    places: int = 0
    count: int = 0


@dataclass(slots=True)
class Shadow:
    """Counts how `policy` differs from the live one. `fault` says what it did wrong, after which it is not asked."""

    policy: GuardedPolicy
    boarding_steps: int = 0
    other_first: int = 0
    victims: int = 0
    other_victims: int = 0
    moves: dict[str, Moves] = field(default_factory=dict)
    first_at: float | None = None
    last_at: float = 0.0

    @property
    def fault(self) -> str | None:
        """What it did wrong."""
        return self.policy.fault

    @property
    def boarding_interval_s(self) -> float:
        """Mean seconds between two steps in which somebody could board."""
        if self.first_at is None or self.boarding_steps < 2:
            return 0.0
        return (self.last_at - self.first_at) / (self.boarding_steps - 1)

    def on_admission(
        self, waiting: ListOf[SequenceView], step: StepView, now: float, live: ListOf[SequenceView], alone: bool
    ) -> None:
        """The live policy has answered `live`."""
        mine = self.policy.admission_order(waiting, step, now, alone=alone)
        if self.fault is not None:
            return
        self.first_at = now if self.first_at is None else self.first_at
        self.last_at = now
        self.boarding_steps += 1
        self.other_first += mine[:1] != list(live[:1])
        self._compare([view.sequence_id for view in live], [view.sequence_id for view in mine], (*live, *mine))

    def on_victim(self, running: ListOf[SequenceView], now: float, live: SequenceView) -> None:
        """The live policy has chosen `live`."""
        mine = self.policy.victim(running, now)
        if self.fault is None:
            self.victims += 1
            self.other_victims += mine is not live

    def on_charge(self, charges: ListOf[Charge], now: float) -> None:
        """The live policy was charged."""
        self.policy.charge(charges, now)

    def _compare(self, live: list[int], mine: list[int], views: ListOf[SequenceView]) -> None:
        """Who is left out has the place after the last."""
        now_at = {key: place for place, key in enumerate(live)}
        then_at = {key: place for place, key in enumerate(mine)}
        for key, tenant in {view.sequence_id: view.tenant for view in views}.items():
            name = tenant if tenant in self.moves or len(self.moves) < MAX_TENANTS else OTHERS
            moves = self.moves.setdefault(name, Moves())
            moves.places += then_at.get(key, len(mine)) - now_at.get(key, len(live))
            moves.count += 1
