"""What an operator can set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.config import REQUIRED, option
from scheduler_svc.policies import BUILT_IN

MAX_MESSAGE_BYTES = 2**31 - 1
"""The largest message that gRPC can be told to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The Citybus scheduler: takes requests, plans steps for an executor, and streams the answers."""

    model: Path = option(REQUIRED, "model folder in Hugging Face layout, for its tokenizer and chat template")
    listen: str = option(
        "127.0.0.1:50051", "address that clients connect to; port 0 takes a free one", unit="host:port"
    )
    admin_listen: str = option("127.0.0.1:50052", "address of the operator's service", unit="host:port")
    metrics_listen: str = option("", "address of the Prometheus metrics; empty is off", unit="host:port")
    executor: str = option("127.0.0.1:50061", "address of the executor", unit="host:port")
    policy: str = option("fcfs", "scheduling policy", choices=tuple(BUILT_IN))
    window: int = option(2, "most plans in flight: 2 hides scheduling behind the executor's work", unit="plans")
    step_timeout: float = option(120.0, "how long a step may take before the executor counts as lost", unit="seconds")
    executor_timeout: float = option(
        30.0, "how long requests wait for a lost executor before they fail", unit="seconds"
    )
    max_request_bytes: int = option(16 * 2**20, "largest message of a client", unit="bytes")
    max_queued_requests: int = option(4096, "most requests at once, running ones included", unit="requests")
    time_limit: float = option(3600.0, "most time of a request, queueing included; it may ask for less", unit="seconds")
    drain_grace: float = option(30.0, "how long running requests may go on after SIGTERM", unit="seconds")
    plan_log: Path | None = option(None, "file to record every plan in, one JSON object a line")
    log_level: str = option("info", "least severity logged", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        for name in ("window", "step_timeout", "executor_timeout", "max_request_bytes", "max_queued_requests"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")
        if self.max_request_bytes > MAX_MESSAGE_BYTES:
            raise ValueError(f"max_request_bytes must be at most {MAX_MESSAGE_BYTES}, as in gRPC")
        if self.time_limit <= 0 or self.drain_grace < 0:
            raise ValueError("time_limit must be more than 0, and drain_grace not less")
