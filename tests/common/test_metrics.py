"""Metrics: names the field knows, and an HTTP port to read them from."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from common.errors import StartupError
from common.metrics import MAX_TENANTS, ExecutorMetrics, SchedulerMetrics, serve_metrics

SCHEDULER = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "kv_blocks": "gauge",
    "executor_connected": "gauge",
    "policy_info": "gauge",
    "policy_rollbacks": "counter",
    "handovers": "counter",
    "handover_adopted_sequences": "gauge",
    "handover_recomputed_tokens": "gauge",
    "tenant_queue_time_seconds": "histogram",
    "tenant_time_to_first_token_seconds": "histogram",
    "tenant_inter_token_latency_seconds": "histogram",
    "tenant_prompt_tokens": "counter",
    "tenant_generation_tokens": "counter",
    "tenant_preemptions": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "num_preemptions": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "request_success": "counter",
    "request_failures": "counter",
    "iteration_tokens_total": "histogram",
    "scheduler_stage_seconds": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
}
EXECUTOR = {
    "executor_kv_pool_bytes": "gauge",
    "executor_weights_bytes": "gauge",
    "executor_model_load_seconds": "gauge",
    "executor_sessions_opened": "counter",
    "executor_pool_clears": "counter",
    "executor_computed_tokens": "counter",
    "executor_backend_info": "gauge",
    "executor_steps": "counter",
    "executor_failed_steps": "counter",
    "executor_idle_seconds": "counter",
    "executor_step_seconds": "histogram",
    "executor_forward_seconds": "histogram",
    "executor_step_tokens": "histogram",
}


def families(registry: CollectorRegistry) -> dict[str, str]:
    return {family.name: family.type for family in registry.collect()}


@pytest.mark.parametrize(("metrics", "names"), [(SchedulerMetrics, SCHEDULER), (ExecutorMetrics, EXECUTOR)])
def test_names_and_types(metrics: type, names: dict[str, str]) -> None:
    registry = CollectorRegistry()
    metrics(registry)
    assert families(registry) == {f"citybus:{name}": kind for name, kind in names.items()}


def test_two_servers_of_one_process_count_apart() -> None:
    one, two = CollectorRegistry(), CollectorRegistry()
    SchedulerMetrics(one).prompt_tokens.inc(3)
    SchedulerMetrics(two).prompt_tokens.inc(4)
    assert one.get_sample_value("citybus:prompt_tokens_total") == 3
    assert two.get_sample_value("citybus:prompt_tokens_total") == 4


def test_one_policy_is_in_force() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    metrics.set_policy("fcfs")
    metrics.set_policy("priority")
    assert registry.get_sample_value("citybus:policy_info", {"policy": "priority"}) == 1
    assert registry.get_sample_value("citybus:policy_info", {"policy": "fcfs"}) is None


def test_only_the_first_tenants_have_labels_of_their_own() -> None:
    metrics = SchedulerMetrics(CollectorRegistry())
    metrics.set_policy("fcfs")
    labels = [metrics.tenant(f"t{number}").labels["tenant"] for number in range(MAX_TENANTS + 5)]
    assert labels == [f"t{number}" for number in range(MAX_TENANTS)] + ["other"] * 5
    metrics.set_policy("fair_share")
    assert metrics.tenant("t0").labels == {"policy": "fair_share", "tenant": "t0"}


def test_labelled_metrics_take_their_labels() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics(registry)
    states = ("free", "cached", "held")
    for index, state in enumerate(states):
        metrics.kv_blocks.labels(state=state).set(index)
    for stage in ("schedule", "publish"):
        metrics.scheduler_stage_seconds.labels(stage=stage).observe(0.0001)
    metrics.request_success.labels(finished_reason="stop").inc()
    metrics.request_failures.labels(code="RESOURCE_EXHAUSTED").inc(2)
    assert [registry.get_sample_value("citybus:kv_blocks", {"state": state}) for state in states] == [0, 1, 2]
    assert registry.get_sample_value("citybus:scheduler_stage_seconds_count", {"stage": "publish"}) == 1
    assert registry.get_sample_value("citybus:request_success_total", {"finished_reason": "stop"}) == 1
    assert registry.get_sample_value("citybus:request_failures_total", {"code": "RESOURCE_EXHAUSTED"}) == 2


def read(port: int | None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        return response.read().decode()


def test_metrics_are_read_over_http() -> None:
    registry = CollectorRegistry()
    SchedulerMetrics(registry).generation_tokens.inc(17)
    server = serve_metrics(registry, "127.0.0.1:0")
    try:
        parsed = {family.name: family for family in text_string_to_metric_families(read(server.port))}
    finally:
        server.close()
    assert parsed["citybus:generation_tokens"].samples[0].value == 17


def test_close_frees_the_port() -> None:
    first = serve_metrics(CollectorRegistry(), "127.0.0.1:0")
    address = f"127.0.0.1:{first.port}"
    with pytest.raises(StartupError, match=f"cannot listen on {address}: Address already in use; "):
        serve_metrics(CollectorRegistry(), address)
    first.close()
    second = serve_metrics(CollectorRegistry(), address)
    second.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(address.split(":")[1])), timeout=30)


def test_no_address_is_off() -> None:
    server = serve_metrics(CollectorRegistry(), "")
    assert server.port is None
    server.close()


@pytest.mark.parametrize("listen", ["9000", "no-such-host.invalid:9000"])
def test_an_address_that_cannot_be_is_one_line(listen: str) -> None:
    with pytest.raises(StartupError) as error:
        serve_metrics(CollectorRegistry(), listen)
    assert listen in str(error.value)
    assert "\n" not in str(error.value)
