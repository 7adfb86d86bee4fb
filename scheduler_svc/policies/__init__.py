"""Scheduling policies, one file each."""

from __future__ import annotations

from scheduler_svc.core.policy import Policy
from scheduler_svc.policies.contiguous import Contiguous
from scheduler_svc.policies.deadline import Deadline
from scheduler_svc.policies.fair_share import FairShare
from scheduler_svc.policies.fcfs import Fcfs
from scheduler_svc.policies.longest_prefix_match import LongestPrefixMatch
from scheduler_svc.policies.priority import Priority
from scheduler_svc.policies.shortest_first import ShortestFirst
from scheduler_svc.policies.static_batch import StaticBatch

_POLICIES: tuple[type[Policy], ...] = (
    Fcfs,
    Priority,
    ShortestFirst,
    LongestPrefixMatch,
    FairShare,
    Deadline,
    StaticBatch,
    Contiguous,
)

BUILT_IN: dict[str, type[Policy]] = {policy.name: policy for policy in _POLICIES}
"""Policies by the name an operator gives."""
