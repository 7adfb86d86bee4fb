"""What an operator can set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.config import REQUIRED, flag_of, option
from common.server_limits import MAX_CALLS
from common.tls import TlsFiles, check_tls_options

MAX_MESSAGE_BYTES = 2**31 - 1
"""The largest message that gRPC can be told to take."""

MAX_SPECULATIVE_TOKENS = 32
"""More than a block has room for at the usual size of 16, and far more than are guessed right."""


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
    executor_token_file: Path | None = option(None, "file with the token that the executor asks for; none is no token")
    executor_ca: Path | None = option(None, "PEM file with the CA of the executor's certificate; none is no TLS to it")
    executor_cert: Path | None = option(None, "PEM file with the certificate to show to the executor")
    executor_key: Path | None = option(None, "PEM file with the key of --executor-cert")
    admin_token_file: Path | None = option(
        None, "file with the token that operators must send, made where there is none; none is no token"
    )
    keys_file: Path | None = option(
        None, "file with the API keys of tenants, as 'citybus keys new' writes it; none: clients need no key"
    )
    limits_file: Path | None = option(None, "TOML file with the limits of tenants; none is no limits")
    tls_cert: Path | None = option(
        None, "PEM file with the certificate to show to clients and operators, and its chain; none is no TLS"
    )
    tls_key: Path | None = option(None, "PEM file with the key of --tls-cert")
    tls_client_ca: Path | None = option(
        None, "PEM file with the CA of clients' and operators' certificates; none: they need no certificate"
    )
    insecure_bind: bool = option(False, "listen beyond this machine without --keys-file or --tls-client-ca")
    policy: str = option("fcfs", "scheduling policy: built-in, installed, or of a file in the policy folder")
    policy_folder: Path | None = option(None, "folder with policies of your own, one Python file each")
    policy_time_limit: float = option(
        0.05, "longest a decision of a policy may take before the policy is rolled back", unit="seconds"
    )
    starvation_limit: float = option(
        120.0, "longest a request may wait while others pass before the policy is rolled back", unit="seconds"
    )
    window: int = option(2, "most plans in flight: 2 hides scheduling behind the executor's work", unit="plans")
    speculative_tokens: int = option(
        0, "most tokens to guess for a sequence in a step, where its text repeats itself; 0 is off", unit="tokens"
    )
    step_timeout: float = option(120.0, "how long a step may take before the executor counts as lost", unit="seconds")
    executor_timeout: float = option(
        30.0, "how long requests wait for a lost executor before they fail", unit="seconds"
    )
    max_request_bytes: int | None = option(
        None, "largest message of a client; none is what a prompt of the model can take, 4 to 16 MiB", unit="bytes"
    )
    max_queued_requests: int = option(4096, "most requests at once, running ones included", unit="requests")
    time_limit: float = option(3600.0, "most time of a request, queueing included; it may ask for less", unit="seconds")
    drain_grace: float = option(30.0, "how long running requests may go on after SIGTERM", unit="seconds")
    journal: Path | None = option(
        None, "file that keeps the accepted requests for the next scheduler; without one they end with the process"
    )
    attach_grace: float = option(
        30.0, "least time that requests go on without a reader after a change of the scheduler", unit="seconds"
    )
    plan_log: Path | None = option(None, "file to record every plan in, one JSON object a line")
    log_level: str = option("info", "least severity logged", choices=("debug", "info", "warning", "error"))
    check: bool = option(False, "only check the options, and end: with exit code 0 where they are good")

    def __post_init__(self) -> None:
        check_tls_options(self, "tls_cert", "tls_key", "tls_client_ca")
        check_tls_options(self, "executor_cert", "executor_key")
        if self.executor_cert is not None and self.executor_ca is None:
            raise ValueError("--executor-cert needs --executor-ca: without it there is no TLS to the executor")
        positive = "window step_timeout executor_timeout max_request_bytes max_queued_requests time_limit"
        for name in (*positive.split(), "policy_time_limit", "starvation_limit"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{flag_of(name)} must be more than 0")
        for name in ("drain_grace", "attach_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{flag_of(name)} must not be less than 0")
        if not 0 <= self.speculative_tokens <= MAX_SPECULATIVE_TOKENS:
            raise ValueError(f"--speculative-tokens must be 0 to {MAX_SPECULATIVE_TOKENS}")
        if self.max_request_bytes is not None and self.max_request_bytes > MAX_MESSAGE_BYTES:
            raise ValueError(f"--max-request-bytes must be at most {MAX_MESSAGE_BYTES}, as in gRPC")

    @property
    def max_calls(self) -> int:
        """Most calls of clients that are open at once: readers, probes and counts beside the requests."""
        return max(MAX_CALLS, 2 * self.max_queued_requests)

    @property
    def tls(self) -> TlsFiles:
        """What clients and operators are shown, and who of them is let in."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

    @property
    def executor_tls(self) -> TlsFiles:
        """What the executor is shown, and whom it has to be signed by."""
        return TlsFiles(self.executor_cert, self.executor_key, self.executor_ca)
