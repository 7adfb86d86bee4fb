"""What a recorded plan log says about every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Journey:
    """One sequence: step -> tokens computed for it in that step, and the steps in which it boarded."""

    rows: dict[int, int] = field(default_factory=dict)
    boarded: list[int] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        """Steps that computed something for it."""
        return list(self.rows)


def journeys(plans: Sequence[dict[str, Any]]) -> dict[int, Journey]:
    """Sequence id -> its journey, in order of arrival."""
    found: dict[int, Journey] = {}
    for plan in plans:
        for sequence_id, num_tokens in (*plan["new"], *plan["scheduled"]):
            found.setdefault(sequence_id, Journey()).rows[plan["step"]] = num_tokens
        for sequence_id, _ in plan["new"]:
            found[sequence_id].boarded.append(plan["step"])
    return dict(sorted(found.items()))


def rows(plan: dict[str, Any]) -> int:
    """Sequences in a step."""
    return len(plan["new"]) + len(plan["scheduled"])
