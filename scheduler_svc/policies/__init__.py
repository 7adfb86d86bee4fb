"""Scheduling policies, one file each."""

from __future__ import annotations

from scheduler_svc.core.policy import Policy
from scheduler_svc.policies.fcfs import Fcfs
from scheduler_svc.policies.priority import Priority

BUILT_IN: dict[str, type[Policy]] = {policy.name: policy for policy in (Fcfs, Priority)}
"""Policies by the name an operator gives."""
