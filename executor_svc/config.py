"""What an operator can set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.config import REQUIRED, flag_of, option
from common.tls import TlsFiles, check_tls_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The Citybus executor: holds a model and its keys and values, and computes the steps a scheduler plans."""

    model: Path = option(REQUIRED, "model folder in Hugging Face layout, with safetensors weights")
    listen: str = option(
        "127.0.0.1:50061",
        "address that the scheduler connects to; port 0 takes a free one",
        unit="host:port",
    )
    token_file: Path | None = option(
        None,
        "file with the token that the scheduler must send, made where there is none; none: whoever connects may send"
        " plans",
    )
    tls_cert: Path | None = option(None, "PEM file with the certificate to show, and its chain; none is no TLS")
    tls_key: Path | None = option(None, "PEM file with the key of --tls-cert")
    tls_client_ca: Path | None = option(
        None, "PEM file with the CA of the scheduler's certificate; none: the scheduler needs no certificate"
    )
    insecure_bind: bool = option(False, "listen beyond this machine without --token-file or --tls-client-ca")
    metrics_listen: str = option("", "address of the Prometheus metrics; empty is off", unit="host:port")
    device: str = option("cpu", "what computes", choices=("cpu", "cuda"))
    dtype: str = option(
        "auto",
        "number format of weights and activations; auto is the checkpoint's, or float32 for one that is neither",
        choices=("auto", "bfloat16", "float32"),
    )
    kv_cache_dtype: str = option(
        "auto",
        "number format of the pool of keys and values; auto is --dtype, fp8 (e4m3) and int8 take about half of"
        " bfloat16's memory and are less exact",
        choices=("auto", "fp8", "int8"),
    )
    cpu_backend: str = option(
        "auto",
        "how a CPU computes: by the native library (bfloat16, x86 with AVX2) or by torch; auto is native where it can",
        choices=("auto", "native", "torch"),
    )
    num_threads: int | None = option(None, "threads that compute; none is one per core available")
    max_model_len: int | None = option(None, "most tokens of a sequence; none is what the model allows")
    block_size: int = option(16, "tokens a block of keys and values holds")
    kv_cache_memory: int | None = option(
        None,
        "memory for keys and values; none is a quarter of what is available once the model is loaded, on a CPU at"
        " most 1024",
        unit="MiB",
    )
    num_blocks: int = option(0, "blocks of keys and values; 0 is as many as fit in --kv-cache-memory")
    max_sequences: int = option(256, "most sequences in a step")
    max_step_tokens: int = option(512, "most tokens computed in a step")
    drain_grace: float = option(30.0, "how long resident sequences may go on after SIGTERM", unit="seconds")
    log_level: str = option("info", "least severity logged", choices=("debug", "info", "warning", "error"))
    check: bool = option(False, "only check the options, and end: with exit code 0 where they are good")

    def __post_init__(self) -> None:
        check_tls_options(self, "tls_cert", "tls_key", "tls_client_ca")
        for name in ("num_threads", "kv_cache_memory", "block_size", "max_sequences", "max_step_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{flag_of(name)} must be at least 1")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError("--max-model-len must be at least 2")
        for name in ("num_blocks", "drain_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{flag_of(name)} must not be less than 0")

    @property
    def tls(self) -> TlsFiles:
        """What it shows, and whom it lets in."""
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)
