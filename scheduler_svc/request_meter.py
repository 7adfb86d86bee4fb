"""Counts what one request gives: tokens, waiting times, how it ended."""

from __future__ import annotations

from collections.abc import Callable

from common.metrics import SchedulerMetrics
from scheduler_svc.core.request import Outcome


class RequestMeter:
    """Writes the metrics of one request of `tenant`; one that is refused leaves none.

    `clock` gives seconds; `arrival` is a reading of it. `begun`: its first token came in the process before this one.
    Of the samples of one prompt, one `has_prompt`: it is counted once.
    """

    def __init__(
        self,
        metrics: SchedulerMetrics,
        clock: Callable[[], float],
        arrival: float,
        tenant: str,
        *,
        begun: bool,
        has_prompt: bool,
    ) -> None:
        self._tenant = tenant
        self._metrics = metrics
        self._clock = clock
        self._arrival = arrival
        self._has_prompt = has_prompt
        self._last_token: float | None = clock() if begun else None

    def on_tokens(self, count: int) -> None:
        """`count` tokens have arrived together."""
        if count == 0:
            return
        now, tenant = self._clock(), self._metrics.tenant(self._tenant)
        if self._last_token is None:
            self._metrics.time_to_first_token_seconds.observe(now - self._arrival)
            tenant.time_to_first_token_seconds.observe(now - self._arrival)
        else:
            latency = (now - self._last_token) / count
            self._metrics.inter_token_latency_seconds.observe(latency)
            tenant.inter_token_latency_seconds.observe(latency)
        self._last_token = now
        self._metrics.generation_tokens.inc(count)
        tenant.generation_tokens.inc(count)

    def on_outcome(self, outcome: Outcome) -> None:
        """The request has ended, and not by an error."""
        metrics = self._metrics
        metrics.request_success.labels(finished_reason=outcome.reason.value).inc()
        metrics.request_generation_tokens.observe(outcome.num_output_tokens)
        metrics.e2e_request_latency_seconds.observe(outcome.total_s)
        tenant = metrics.tenant(self._tenant)
        if self._has_prompt:
            metrics.request_prompt_tokens.observe(outcome.num_prompt_tokens)
            tenant.prompt_tokens.inc(outcome.num_prompt_tokens)
        tenant.preemptions.inc(outcome.num_preemptions)
        if outcome.queued_s is not None:
            metrics.request_queue_time_seconds.observe(outcome.queued_s)
            tenant.queue_time_seconds.observe(outcome.queued_s)
