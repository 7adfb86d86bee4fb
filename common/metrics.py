"""Every metric of both services, and the port they are read from.

Names and meanings are those of vLLM with its prefix `vllm:` replaced by `citybus:`, so that dashboards and alerts
carry over; what vLLM lacks (the three-way split of the pool, the scheduler's own cost) follows SGLang. Durations are
in seconds; prefix cache queries and hits count tokens, not requests.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from common import address

PREFIX = "citybus:"

MAX_TENANTS = 32
"""Tenants that have metrics of their own."""

OTHER_TENANTS = "other"
"""The label of all the others."""

_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
_TENANT_LATENCY = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
_TENANT = ("policy", "tenant")
_STAGE = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
_TOKENS = tuple(float(2**power) for power in range(18))


class _Family:
    """Makes metrics in one registry, under our prefix."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(PREFIX + name, meaning, labels, registry=self._registry)

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(PREFIX + name, meaning, labels, registry=self._registry)

    def histogram(self, name: str, meaning: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
        return Histogram(PREFIX + name, meaning, labels, registry=self._registry, buckets=buckets)


class HandOverMetrics:
    """What a scheduler counts of its beginning, where another one has left something."""

    def __init__(self, make: _Family) -> None:
        self.total = make.counter("handovers", "Times that this scheduler took over what another one had left")
        self.adopted_sequences = make.gauge("handover_adopted_sequences", "Sequences that ran on as they were")
        self.recomputed_tokens = make.gauge("handover_recomputed_tokens", "Tokens that had to be computed again")


@dataclass(frozen=True, slots=True)
class TenantMetrics:
    """What is counted for one tenant under one policy: found once, and not again for every token."""

    labels: dict[str, str]
    queue_time_seconds: Histogram
    time_to_first_token_seconds: Histogram
    inter_token_latency_seconds: Histogram
    prompt_tokens: Counter
    generation_tokens: Counter
    preemptions: Counter


class _TenantFamilies:
    """The metrics that have a series for every tenant under every policy."""

    def __init__(self, make: _Family) -> None:
        self._queue_time = make.histogram(
            "tenant_queue_time_seconds", "From arrival to the first step", _TENANT_LATENCY, _TENANT
        )
        self._first_token = make.histogram(
            "tenant_time_to_first_token_seconds", "From arrival to the first token", _TENANT_LATENCY, _TENANT
        )
        self._inter_token = make.histogram(
            "tenant_inter_token_latency_seconds", "Between two tokens of a request", _TENANT_LATENCY, _TENANT
        )
        self._prompt = make.counter("tenant_prompt_tokens", "Prompt tokens of ended requests", _TENANT)
        self._generation = make.counter("tenant_generation_tokens", "Tokens generated", _TENANT)
        self._preemptions = make.counter("tenant_preemptions", "Preemptions of ended requests", _TENANT)

    def of(self, labels: dict[str, str]) -> TenantMetrics:
        """The series of one tenant."""
        return TenantMetrics(
            labels,
            self._queue_time.labels(**labels),
            self._first_token.labels(**labels),
            self._inter_token.labels(**labels),
            self._prompt.labels(**labels),
            self._generation.labels(**labels),
            self._preemptions.labels(**labels),
        )


class SchedulerMetrics:
    """What the scheduler counts. Labels are bounded: of the names that callers choose, the first tenants only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._policy = ""
        self._tenants: set[str] = set()
        self._of_tenant: dict[str, TenantMetrics] = {}
        make = _Family(registry)
        self.hand_over = HandOverMetrics(make)
        self._families = _TenantFamilies(make)
        self.num_requests_running = make.gauge("num_requests_running", "Sequences in the batch")
        self.num_requests_waiting = make.gauge("num_requests_waiting", "Sequences waiting for a seat")
        self.kv_cache_usage_perc = make.gauge("kv_cache_usage_perc", "Share of KV blocks in block tables, 0 to 1")
        self.kv_blocks = make.gauge("kv_blocks", "KV blocks by state: free, cached, held", ("state",))
        self.executor_connected = make.gauge("executor_connected", "1 while the scheduler drives an executor")
        self._policy_info = make.gauge("policy_info", "1 for the scheduling policy in force", ("policy",))

        self.policy_rollbacks = make.counter(
            "policy_rollbacks", "Policies that failed and were rolled back", ("policy",)
        )

        self.prefix_cache_queries = make.counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
        self.prefix_cache_hits = make.counter("prefix_cache_hits", "Prompt tokens found in the prefix cache")
        self.prompt_tokens = make.counter("prompt_tokens", "Prompt tokens of admitted requests")
        self.generation_tokens = make.counter("generation_tokens", "Tokens generated")
        self.num_preemptions = make.counter("num_preemptions", "Sequences that gave up their blocks")
        self.draft_tokens = make.counter("spec_decode_num_draft_tokens", "Tokens guessed by speculation")
        self.accepted_tokens = make.counter("spec_decode_num_accepted_tokens", "Tokens guessed right by speculation")
        self.request_success = make.counter("request_success", "Requests that ended, by how", ("finished_reason",))
        self.request_failures = make.counter("request_failures", "Requests refused or failed, by gRPC code", ("code",))

        self.iteration_tokens = make.histogram("iteration_tokens_total", "Tokens computed in a step", _TOKENS)
        self.scheduler_stage_seconds = make.histogram(
            "scheduler_stage_seconds",
            "Scheduler's own time in a step, by stage: schedule, encode, apply, publish",
            _STAGE,
            ("stage",),
        )
        self.time_to_first_token_seconds = make.histogram(
            "time_to_first_token_seconds", "From arrival to the first token", _LATENCY
        )
        self.inter_token_latency_seconds = make.histogram(
            "inter_token_latency_seconds", "Between two tokens of a request", _LATENCY
        )
        self.e2e_request_latency_seconds = make.histogram(
            "e2e_request_latency_seconds", "From arrival to the end of a request", _LATENCY
        )
        self.request_queue_time_seconds = make.histogram(
            "request_queue_time_seconds", "From arrival to the first step", _LATENCY
        )
        self.request_prompt_tokens = make.histogram("request_prompt_tokens", "Prompt tokens of a request", _TOKENS)
        self.request_generation_tokens = make.histogram(
            "request_generation_tokens", "Tokens generated for a request", _TOKENS
        )

    def tenant(self, name: str) -> TenantMetrics:
        """Those of a tenant under the policy in force: by its name where it is one of the first, else "other"."""
        if name not in self._tenants and len(self._tenants) < MAX_TENANTS:
            self._tenants.add(name)
        label = name if name in self._tenants else OTHER_TENANTS
        if label not in self._of_tenant:
            self._of_tenant[label] = self._families.of({"policy": self._policy, "tenant": label})
        return self._of_tenant[label]

    def set_policy(self, name: str) -> None:
        """Say that policy `name` is now the one in force."""
        self._policy = name
        self._of_tenant.clear()
        self._policy_info.clear()
        self._policy_info.labels(policy=name).set(1)


class ExecutorMetrics:
    """What the executor counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        make = _Family(registry)
        self.kv_pool_bytes = make.gauge("executor_kv_pool_bytes", "Memory of the KV pool")
        self.weights_bytes = make.gauge("executor_weights_bytes", "Memory of the weights")
        self.model_load_seconds = make.gauge("executor_model_load_seconds", "Time the model took to load")
        self.backend_info = make.gauge("executor_backend_info", "1 for what computes the forward pass", ("backend",))

        self.sessions_opened = make.counter("executor_sessions_opened", "Sessions that schedulers opened")
        self.pool_clears = make.counter("executor_pool_clears", "Sessions that began by dropping what the pool held")
        self.steps = make.counter("executor_steps", "Steps executed")
        self.computed_tokens = make.counter(
            "executor_computed_tokens",
            "Tokens computed, by kind: decode where the next token was drawn from it, rejected for a guess that was"
            " wrong, prefill elsewhere",
            ("kind",),
        )
        self.failed_steps = make.counter("executor_failed_steps", "Steps that raised and dropped their sequences")
        self.idle_seconds = make.counter("executor_idle_seconds", "Time without a plan to execute")

        self.step_seconds = make.histogram("executor_step_seconds", "From plan to result, on the executor", _LATENCY)
        self.forward_seconds = make.histogram("executor_forward_seconds", "Forward pass of a step", _LATENCY)
        self.step_tokens = make.histogram("executor_step_tokens", "Tokens computed in a step", _TOKENS)


class MetricsServer:
    """The HTTP server the metrics are read from; `port` is the bound one, None where it is off."""

    def __init__(self, server: WSGIServer | None = None, thread: threading.Thread | None = None) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int | None:
        return self._server.server_port if self._server else None

    def close(self) -> None:
        """Stop serving and free the port."""
        if self._server and self._thread:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


def serve_metrics(registry: CollectorRegistry, listen: str) -> MetricsServer:
    """Serve the metrics of `registry` over HTTP on `listen` ("host:port"; "" is off), from a thread of its own.

    Raises `StartupError` where it cannot listen there.
    """
    if not listen:
        return MetricsServer()
    host, port = address.split(listen)
    try:
        return MetricsServer(*start_http_server(port, host, registry))
    except OSError as error:
        raise address.cannot_listen(listen, "--metrics-listen", error) from error
