"""Every tenant gets its share of the tokens, however much it asks for."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_svc.core.policy import Charge, Policy, SequenceView, StepView

MAX_TENANTS = 1024
"""Counters kept; beyond, those that stand lowest are forgotten: they would be lifted anyway."""

Queues = dict[str, list[SequenceView]]


@dataclass(frozen=True, slots=True)
class FairShareParameters:
    """What service costs and who gets how much of it.

    Attributes:
        prompt_cost: of a prompt token computed.
        output_cost: of a token generated, in the same unit.
        weights: share of a tenant relative to the others; 1 where it is not named.
        boarding_share: share of a step's prefill tokens that prefills under way leave to who boards, 0 to 1.
    """

    prompt_cost: float = 1.0
    output_cost: float = 2.0
    weights: Mapping[str, float] = field(default_factory=dict)
    boarding_share: float = 0.25

    def __post_init__(self) -> None:
        if self.prompt_cost < 0 or self.output_cost < 0 or self.prompt_cost + self.output_cost == 0:
            raise ValueError("prompt_cost and output_cost must not be less than 0, nor both 0")
        if any(weight <= 0 for weight in self.weights.values()):
            raise ValueError("weights must be more than 0")
        if not 0 <= self.boarding_share <= 1:
            raise ValueError("boarding_share must be 0 to 1")


class FairShare(Policy):
    """The virtual token counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024).

    A counter a tenant adds up the weighted service it got; of those who wait, the lowest boards next. A tenant that
    comes back is lifted to the lowest counter of those who wait, so that idle time gives no credit. Two tenants that
    both wait all the time differ in service by at most 2 max(prompt_cost * longest prompt, output_cost * tokens the
    pool holds), whatever they send; splitting work into many requests gains nothing.
    """

    name = "fair_share"
    Parameters = FairShareParameters
    parameters: FairShareParameters

    def __init__(self, parameters: FairShareParameters | None = None) -> None:
        super().__init__(parameters)
        self._served: dict[str, float] = {}
        self._newest: dict[str, int] = {}  # of each tenant that waited at the last look, its newest sequence then

    def admission_order(self, waiting: Sequence[SequenceView], step: StepView, now: float) -> Iterator[SequenceView]:
        queues: Queues = {}
        for view in waiting:
            queues.setdefault(view.tenant, []).append(view)
        self._lift(queues)
        return self._interleaved(queues)

    def boarding_reserve(self, step: StepView, now: float) -> int:
        return max(0, int(self.parameters.boarding_share * (step.max_tokens - step.num_decodes)))

    def prefill_order(self, prefills: Sequence[SequenceView], now: float) -> list[SequenceView]:
        return sorted(prefills, key=lambda view: self._served.get(view.tenant, 0.0))

    def victim(self, running: Sequence[SequenceView], now: float) -> SequenceView:
        return max(running, key=lambda view: (self._served.get(view.tenant, 0.0), view.sequence_id))

    def charge(self, charges: Sequence[Charge], now: float) -> None:
        output = Counter(charge.sequence.tenant for charge in charges if charge.num_drawn)  # 0 or 1 each
        prompt: Counter[str] = Counter()
        for charge in charges:
            if charge.num_tokens > charge.num_drawn:
                prompt[charge.sequence.tenant] += charge.num_tokens - charge.num_drawn
        for tenant in output | prompt:
            self._bill(tenant, prompt[tenant], output[tenant])

    def export_state(self) -> Mapping[str, object]:
        return {"served": dict(self._served)}

    def import_state(self, state: Mapping[str, object]) -> None:
        served = state.get("served")
        if isinstance(served, Mapping):
            self._served = {str(tenant): float(tokens) for tenant, tokens in served.items()}

    def _bill(self, tenant: str, num_prompt: int, num_output: int) -> None:
        cost = self.parameters.prompt_cost * num_prompt + self.parameters.output_cost * num_output
        self._served[tenant] = self._served.get(tenant, 0.0) + cost / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        return self.parameters.weights.get(tenant, 1.0)

    def _lift(self, queues: Queues) -> None:
        """No credit for idle time: who was away starts where the lowest of those stands who were not."""
        stayed = [tenant for tenant, queue in queues.items() if queue[0].sequence_id <= self._newest.get(tenant, -1)]
        level = min((self._served.get(tenant, 0.0) for tenant in stayed or self._newest), default=0.0)
        for tenant in queues.keys() - set(stayed):
            self._served[tenant] = max(self._served.get(tenant, 0.0), level)
        self._newest = {tenant: queue[-1].sequence_id for tenant, queue in queues.items()}
        if len(self._served) > MAX_TENANTS:
            kept = sorted(self._served, key=lambda tenant: (tenant in queues, self._served[tenant]))[-MAX_TENANTS:]
            self._served = {tenant: self._served[tenant] for tenant in kept}

    def _interleaved(self, queues: Queues) -> Iterator[SequenceView]:
        """The lowest counter's eldest, over and over, as if its prompt were charged when it boards."""
        heap = [(self._served[tenant], queue[0].sequence_id, tenant, 0) for tenant, queue in queues.items()]
        heapq.heapify(heap)
        while heap:
            served, _, tenant, index = heapq.heappop(heap)
            view = queues[tenant][index]
            yield view
            if index + 1 < len(queues[tenant]):
                cost = max(1.0, self.parameters.prompt_cost * view.num_uncached_tokens) / self._weight(tenant)
                following = queues[tenant][index + 1].sequence_id
                heapq.heappush(heap, (served + cost, following, tenant, index + 1))
