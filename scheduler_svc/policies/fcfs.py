"""First come, first served: the defaults of every decision."""

from __future__ import annotations

from scheduler_svc.core.policy import Policy


class Fcfs(Policy):
    """Boards in order of arrival; the youngest gives up its blocks first."""

    name = "fcfs"
