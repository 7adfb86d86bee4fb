"""Beam search through the processes: the answers and scores of transformers, whatever else happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM

from citybus import Client, Completion, FinishReason, InvalidRequest
from tests.e2e.field_cases.field import Field, running_field
from tests.harness import Bus, running_bus

EDGES = (1, 15, 16, 17, 31, 32, 33)
LENGTH = 20
ROOMY = ("--num-blocks", 256)
TIGHT = ("--num-blocks", 26, "--max-step-tokens", 24, "--max-sequences", 14)
"""Three searches of four beams cannot all grow to their end here."""
SEARCHES: list[dict[str, Any]] = [
    {"beam_width": 2, "n": 2},
    {"beam_width": 4, "n": 4, "length_penalty": 2.0},
    {"beam_width": 4, "n": 1, "length_penalty": 0.0, "early_stopping": "never"},
    {"beam_width": 7, "n": 3, "length_penalty": -1.0, "early_stopping": True},
]


def prompt(length: int) -> list[int]:
    return [(7 * position + length) % 250 for position in range(length)]


@pytest.fixture(scope="module")
def oracle(tiny: Path) -> LlamaForCausalLM:
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # or it would come in where a request has no end tokens
    return model


def expected_of(
    oracle: LlamaForCausalLM, length: int, stops: list[int], max_tokens: int = LENGTH, **search: Any
) -> list[tuple[tuple[int, ...], float]]:
    config = GenerationConfig(
        num_beams=search["beam_width"],
        num_return_sequences=search["n"],
        max_new_tokens=max_tokens,
        length_penalty=search.get("length_penalty", 1.0),
        early_stopping=search.get("early_stopping", False),
        eos_token_id=stops or None,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = torch.tensor([prompt(length)])  # and all of it is seen, the padding's token, too
    found: Any = oracle.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    answers = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        output = row[length:]
        ends = [index for index, token in enumerate(output) if token in stops]
        answers.append((tuple(output[: ends[0] + 1] if ends else output), score))
    return answers


def ask(client: Client, length: int, stops: list[int], max_tokens: int = LENGTH, **search: Any) -> list[Completion]:
    options = {"token_ids": prompt(length), "max_tokens": max_tokens, "ignore_eos": True, "stop_token_ids": stops}
    return client.samples(**(options | search))  # type: ignore[misc]


def check(found: list[Completion], expected: list[tuple[tuple[int, ...], float]], stops: list[int]) -> None:
    assert [completion.token_ids for completion in found] == [tokens for tokens, _ in expected]
    scores = [completion.finish.score for completion in found]
    assert scores == pytest.approx([score for _, score in expected], rel=1e-5)
    for completion in found:
        stopped = completion.token_ids[-1] in stops
        assert completion.finish.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert completion.finish.usage.completion_tokens == len(completion.token_ids)


@pytest.fixture(scope="module", params=[ROOMY, TIGHT], ids=["roomy", "tight"])
def field(request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with running_field(tiny, tmp_path_factory.mktemp("beams"), executor=request.param) as started:
        yield started


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: f"width {search['beam_width']}")
def test_answers_are_those_of_transformers(field: Field, oracle: LlamaForCausalLM, search: dict[str, Any]) -> None:
    """At every edge of a block; the second time the prompt is a prefix hit."""
    for length in EDGES:
        stops = [] if length % 2 else [5, 77, 130]
        expected = expected_of(oracle, length, stops, **search)
        for _ in range(2):
            check(ask(field.client, length, stops, **search), expected, stops)
    field.check()


def test_searches_run_beside_each_other_and_other_requests(field: Field, oracle: LlamaForCausalLM) -> None:
    """In the tight bus they preempt each other, as a whole, and come to the same end."""
    since, search = len(field.bus.plans()), {"beam_width": 4, "n": 4}
    alone = field.reference(prompt(40), 40)
    expected = {length: expected_of(oracle, length, [], 80, **search) for length in (17, 30, 33)}
    with ThreadPoolExecutor(5) as pool:
        searches = {length: pool.submit(ask, field.client, length, [], 80, **search) for length in expected}
        others = [pool.submit(field.ask, prompt(40), 40) for _ in range(2)]
        for length, future in searches.items():
            check(future.result(60), expected[length], [])
        assert [other.result(60).token_ids for other in others] == [alone, alone]
    field.check()
    plans = field.bus.plans()[since:]
    assert any(plan["forks"] and plan["scheduled"] for plan in plans)
    if field.bus.executor.flags[-1] == "14":
        assert any(plan["preempted"] for plan in plans)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_width": 1}, r"beam_search\.width must be from 2 to"),
        ({"beam_width": 17}, r"beam_search\.width must be from 2 to"),
        ({"n": 5}, r"samples\.n must be at most beam_search\.width, which is 4"),
        ({"length_penalty": float("nan")}, r"beam_search\.length_penalty must be from -10 to 10"),
        ({"temperature": 0.5}, r"sampling\.temperature cannot be set together with beam_search"),
        ({"logprobs": 1}, r"output\.logprobs cannot be set together"),
        ({"stop": ["x"]}, r"stopping\.stop cannot be set together"),
        ({"min_tokens": 3}, r"stopping\.min_tokens cannot be set together"),
        ({"best_of": 4}, r"samples\.best_of cannot be set together"),
        ({"stop_token_ids": list(range(29))}, r"with 29 tokens that end an answer it must be at most 3"),
    ],
)
def test_what_a_search_refuses(field: Field, changes: dict[str, Any], message: str) -> None:
    options = {"token_ids": prompt(9), "max_tokens": 5, "ignore_eos": True, "beam_width": 4, "n": 2} | changes
    with pytest.raises(InvalidRequest, match=message):
        field.client.samples(**options)  # type: ignore[arg-type]


def test_a_search_ends_where_its_client_leaves_or_its_time_is_over(field: Field) -> None:
    late = ask(field.client, 9, [], 230, beam_width=4, n=3, time_limit_ms=30)
    assert [(completion.token_ids, completion.finish.reason) for completion in late] == [
        ((), FinishReason.DEADLINE)
    ] * 3
    with field.client.generate(token_ids=prompt(9), max_tokens=230, ignore_eos=True, beam_width=4, n=3) as stream:
        assert stream.request_id()
    field.check()


@pytest.mark.parametrize("killed", ["scheduler", "executor", "executor and scheduler"])
def test_a_search_survives_a_kill(tiny: Path, tmp_path: Path, oracle: LlamaForCausalLM, killed: str) -> None:
    """It starts over, and nobody hears of it: the same answers come, once."""
    executor = ("--num-blocks", "128", "--num-threads", "1")
    with running_bus(tiny, tmp_path, executor=executor, scheduler=("--journal", str(tmp_path / "journal"))) as bus:
        check_after_a_kill(bus, killed, expected_of(oracle, 20, [], 200, beam_width=4, n=2))


def check_after_a_kill(bus: Bus, killed: str, expected: list[tuple[tuple[int, ...], float]]) -> None:
    with Client(bus.address) as client, ThreadPoolExecutor(1) as pool:
        another: dict[str, Any] = {"token_ids": prompt(33), "max_tokens": 30, "temperature": 0.0, "ignore_eos": True}
        alone = client.complete(**another).token_ids
        asked = pool.submit(ask, client, 20, [], 200, beam_width=4, n=2)
        while not (bus.plan_log.exists() and sum(bool(plan["forks"]) for plan in bus.plans()) > 20):
            time.sleep(0.02)
        both = {"executor": bus.executor, "scheduler": bus.scheduler}
        services = [service for name, service in both.items() if name in killed]
        for service in services:
            service.kill()
        assert not asked.done(), "it was killed too late"
        for service in services:
            service.restart()
        client.wait_ready()
        assert client.complete(**another, cache_salt="new").token_ids == alone
        check(asked.result(60), expected, [])
        again = client.samples(token_ids=prompt(20), max_tokens=200, ignore_eos=True, beam_width=4, n=2)
        check(again, expected, [])
    bus.wait_idle()
    boarded = {sequence for plan in bus.plans() for sequence, _ in plan["new"]}
    assert boarded == {1, 2, 6, 7}, "the ids of four beams are the search's own"
