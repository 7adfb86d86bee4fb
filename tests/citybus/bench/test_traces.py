"""The formats of traces, each on a few lines of text."""

from __future__ import annotations

from pathlib import Path

import pytest

from citybus.bench.traces import BadTrace, Trace, parse, read
from citybus.bench.workload import Call

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:51.2224670,879,0
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}

{"timestamp": 3500, "input_length": 100, "output_length": 9, "hash_ids": [0]}
"""
ARENA = '{"t_s": 2.5, "tenant": 8, "input_tokens": 13, "output_tokens": 199}\n'
LENGTHS = """num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
74,918,992,0.08
290,905,1195,0.32
"""


def test_azure_has_times_and_is_put_in_order() -> None:
    trace = parse(AZURE.splitlines(), "azure.csv")
    assert [(call.num_prompt, call.num_output) for call in trace.calls] == [(374, 44), (396, 109), (879, 1)]
    assert [call.at for call in trace.calls] == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)
    assert trace.timed


def test_mooncake_has_prefixes() -> None:
    assert parse(MOONCAKE.splitlines(), "m.jsonl") == Trace(
        (Call(0.0, 600, 5, prefix=(0, 7), prefix_block=512), Call(2.5, 100, 9, prefix=(0,), prefix_block=512)), True
    )


def test_arena_has_tenants() -> None:
    assert parse([ARENA], "a.jsonl") == Trace((Call(0.0, 13, 199, tenant="8"),), True)


def test_lengths_have_no_times() -> None:
    assert parse(LENGTHS.splitlines(), "l.csv") == Trace((Call(0.0, 74, 918), Call(0.0, 290, 905)), False)


def test_a_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(LENGTHS, encoding="utf-8")
    assert len(read(path).calls) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "t is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "t is no known trace"),
        ("a,b\n1,2\n", "t is no known trace: expected the columns of one of these formats: TIMESTAMP"),
        ("{not json", "t is not JSON lines"),
        ("num_prefill_tokens,num_decode_tokens\n1,x\n", "t, entry 1: ValueError"),
        (ARENA + '{"t_s": 1}\n', "t, entry 2: KeyError"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(BadTrace, match=reason):
        parse(text.splitlines(), "t")
