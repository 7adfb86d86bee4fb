"""Whether a policy lets somebody wait while others pass."""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from scheduler_svc.core.sequence import Sequence

PASSES = 3
"""Starved is who was passed over this often after the limit."""

_MAX_CHECKED = 64
"""The eldest that wait are watched: bounds the work of a step."""


class StarvationWatch:
    """A request starves that has waited more than `limit_s` seconds while `PASSES` others passed it since.

    Another passes it by boarding although it arrived later and has no higher claim: no higher priority, no earlier
    deadline, and the same tenant (the tenant of the one that waits may have had its share), unless nobody of the
    waiting tenant has boarded within the limit.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._passes: dict[int, int] = {}
        self._last_boarding: dict[str, float] = {}
        self._sweep_above = 2 * _MAX_CHECKED

    def starved(self, waiting: ListOf[Sequence], boarded: ListOf[Sequence], now: float) -> Sequence | None:
        """Who starves, after `boarded` have boarded and left `waiting` (in order of arrival) behind."""
        patient = [one for one in waiting[:_MAX_CHECKED] if now - one.waiting_since > self._limit_s]
        self._passes = {one.sequence_id: self._passes.get(one.sequence_id, 0) for one in patient}
        for one in patient:
            self._passes[one.sequence_id] += sum(1 for other in boarded if self._passed(one, other, now))
        self._note(boarded, now)
        return next((one for one in patient if self._passes[one.sequence_id] >= PASSES), None)

    def start_over(self) -> None:
        """Another policy decides from now on."""
        self._passes.clear()

    def _passed(self, one: Sequence, other: Sequence, now: float) -> bool:
        if other.sequence_id < one.sequence_id or other.priority > one.priority:
            return False
        if _due(other) < _due(one):
            return False
        last = self._last_boarding.get(one.tenant)
        return other.tenant == one.tenant or last is None or now - last > self._limit_s

    def _note(self, boarded: ListOf[Sequence], now: float) -> None:
        self._last_boarding |= {sequence.tenant: now for sequence in boarded}
        if len(self._last_boarding) > self._sweep_above:
            recent = {tenant: at for tenant, at in self._last_boarding.items() if now - at <= self._limit_s}
            self._last_boarding, self._sweep_above = recent, 2 * max(len(recent), _MAX_CHECKED)


def _due(sequence: Sequence) -> float:
    return float("inf") if sequence.deadline is None else sequence.deadline
