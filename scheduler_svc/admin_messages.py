"""The operator's messages, made of the scheduler's own state."""

from __future__ import annotations

from dataclasses import asdict

from citybus.admin.v1 import admin_pb2 as pb
from scheduler_svc import policy_parameters
from scheduler_svc.core.reservation import reservation
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, Status
from scheduler_svc.core.shadow import Shadow
from scheduler_svc.events import (
    DrainingChanged,
    ExecutorConnected,
    ExecutorLost,
    HandOver,
    Numbered,
    PoliciesReloaded,
    PolicyChanged,
    PolicyRolledBack,
    Preempted,
)
from scheduler_svc.policy_shelf import Shelved

_TOTALS = tuple(pb.Totals.DESCRIPTOR.fields_by_name)
_PHASES = {
    Status.WAITING: pb.RequestState.PHASE_WAITING,
    Status.RUNNING: pb.RequestState.PHASE_RUNNING,
}


def add_readings(response: pb.GetStatusResponse, core: Scheduler, block_size: int) -> None:
    """Fill in what the core says of itself."""
    state, totals, reserved = core.snapshot(), core.totals, reservation(core)
    response.running, response.waiting = state.running, state.waiting
    response.reserved_seats = reserved.num_seats
    pool = pb.PoolStatus(
        block_size=block_size,
        free=state.pool.free,
        cached=state.pool.cached,
        held=state.pool.held,
        tokens_held=state.tokens_held,
        reserved=reserved.num_blocks,
    )
    response.pool.CopyFrom(pool)
    response.totals.CopyFrom(pb.Totals(**{name: getattr(totals, name) for name in _TOTALS}))


def policy_info(name: str, shelved: Shelved) -> pb.PolicyInfo:
    """A policy that can be set."""
    summary = (shelved.policy.__doc__ or "").strip().partition("\n")[0]
    defaults = policy_parameters.show(shelved.policy.Parameters())
    return pb.PolicyInfo(name=name, summary=summary, source=shelved.source, parameters=defaults)


def request_state(sequence: Sequence, now: float) -> pb.RequestState:
    """One request in flight."""
    return pb.RequestState(
        sequence_id=sequence.sequence_id,
        phase=_PHASES[sequence.status],
        age_ms=max(0, int(1000 * (now - sequence.arrival))),
        prompt_tokens=sequence.num_prompt_tokens,
        output_tokens=sequence.num_output_tokens,
        blocks=len(sequence.block_table),
        preemptions=sequence.num_preemptions,
        tenant=sequence.tenant,
        priority=sequence.priority,
    )


def dry_run(shadow: Shadow) -> pb.DryRunPolicyResponse:
    """What a dry run found."""
    places = {tenant: moves.places / moves.count for tenant, moves in shadow.moves.items()}
    interval_ms = 1000 * shadow.boarding_interval_s
    return pb.DryRunPolicyResponse(
        boarding_steps=shadow.boarding_steps,
        other_first=shadow.other_first,
        victims=shadow.victims,
        other_victims=shadow.other_victims,
        place_change=places,
        wait_change_ms={tenant: interval_ms * change for tenant, change in places.items()},
        fault=shadow.fault or "",
    )


def event(numbered: Numbered) -> pb.WatchEventsResponse:
    """An event as it travels."""
    response = pb.WatchEventsResponse(unix_ms=int(1000 * numbered.unix_s), number=numbered.number)
    match numbered.event:
        case PolicyChanged(policy, before):
            response.policy_changed.CopyFrom(pb.PolicyChanged(policy=policy, before=before))
        case PolicyRolledBack(policy, failed, reason):
            response.policy_rolled_back.CopyFrom(pb.PolicyRolledBack(policy=policy, failed=failed, reason=reason))
        case Preempted(sequence_ids, step):
            response.preempted.CopyFrom(pb.Preempted(sequence_ids=sequence_ids, step=step))
        case ExecutorConnected():
            response.executor_connected.SetInParent()
        case ExecutorLost():
            response.executor_lost.SetInParent()
        case DrainingChanged(draining):
            response.draining_changed.CopyFrom(pb.DrainingChanged(draining=draining))
        case PoliciesReloaded(loaded):
            response.policies_reloaded.CopyFrom(pb.PoliciesReloaded(loaded=loaded))
        case HandOver() as found:
            response.hand_over.CopyFrom(pb.HandOver(**asdict(found)))
    return response
