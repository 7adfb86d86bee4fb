"""What a step tells the metrics."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from common.metrics import SchedulerMetrics
from common.step import StepPlan
from scheduler_svc.core.scheduler import Scheduler


class StepMetrics:
    """Keeps the gauges at the state of the core, and the counters in step with its totals."""

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._metrics = metrics
        self._counters = {
            "prompt_tokens": (metrics.prompt_tokens, metrics.prefix_cache_queries),
            "cached_tokens": (metrics.prefix_cache_hits,),
            "preemptions": (metrics.num_preemptions,),
            "draft_tokens": (metrics.draft_tokens,),
            "accepted_draft_tokens": (metrics.accepted_tokens,),
        }
        self._counted = dict.fromkeys(self._counters, 0)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage of the scheduler's own work."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._metrics.scheduler_stage_seconds.labels(stage=name).observe(time.perf_counter() - started)

    def planned(self, plan: StepPlan) -> None:
        """A plan was sent."""
        if plan.num_tokens:
            self._metrics.iteration_tokens.observe(plan.num_tokens)

    def observe(self, core: Scheduler) -> None:
        """Read the state of the core."""
        self._metrics.executor_connected.set(1)
        state = core.snapshot()
        self._metrics.num_requests_running.set(state.running)
        self._metrics.num_requests_waiting.set(state.waiting)
        for name, blocks in (("free", state.pool.free), ("cached", state.pool.cached), ("held", state.pool.held)):
            self._metrics.kv_blocks.labels(state=name).set(blocks)
        total = state.pool.free + state.pool.cached + state.pool.held
        self._metrics.kv_cache_usage_perc.set(state.pool.held / total)
        for name, counters in self._counters.items():
            counted = getattr(core.totals, name)
            for counter in counters:
                counter.inc(counted - self._counted[name])
            self._counted[name] = counted

    def disconnected(self) -> None:
        """No executor is driven."""
        self._metrics.executor_connected.set(0)
