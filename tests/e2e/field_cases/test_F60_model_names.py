"""The model of a request is compared with one name, and is never a path, a label or a line of the log."""

from __future__ import annotations

import urllib.request

import grpc
import pytest

from citybus.v1 import generation_pb2 as pb
from tests.e2e.field_cases.field import Field
from tests.e2e.field_cases.wire import send, status

COUNT_TOKENS = "/citybus.v1.GenerationService/CountTokens"
NAMES = {
    "up": "../../etc/passwd",
    "absolute": "/etc",
    "inside": "a/../../b",
    "encoded": "%2e%2e%2f",
    "backslashes": "..\\..",
    "dot": "./tiny",
    "nul": "tiny\0",
    "newline": "tiny\nlevel=error forged",
    "blank": " tiny",
    "case": "TINY",
    "hub": "meta-llama/Llama-3.2-1B",
    "url": "https://example.org/model",
    "1 MB": "../" * 350_000,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_F60_name_of_no_model_is_not_found_and_not_repeated(tiny_field: Field, name: str) -> None:
    with status(grpc.StatusCode.NOT_FOUND, 'model: not served here; this server answers for "tiny"'):
        send(tiny_field.bus.address, pb.GenerateRequest(model=name, text="x").SerializeToString())
    with grpc.insecure_channel(tiny_field.bus.address) as channel, status(grpc.StatusCode.NOT_FOUND, '"tiny"'):
        channel.unary_unary(COUNT_TOKENS)(pb.CountTokensRequest(model=name, text="x").SerializeToString(), timeout=30)
    scheduler = tiny_field.bus.scheduler
    with urllib.request.urlopen(f"http://127.0.0.1:{scheduler.facts['metrics_port']}/metrics", timeout=10) as response:
        metrics = response.read().decode()
    if name.strip().lower() != "tiny":
        part = name.splitlines()[-1][:60]
        assert part not in metrics
        assert part not in scheduler.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["", "tiny"])
def test_F60_its_own_name_or_none_is_the_served_model(tiny_field: Field, name: str) -> None:
    request = pb.GenerateRequest(model=name, text="x", stopping=pb.StopParams(max_tokens=1, ignore_eos=True))
    assert send(tiny_field.bus.address, request.SerializeToString())[-1].finish.usage.completion_tokens == 1
