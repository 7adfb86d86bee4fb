"""The best of several samples: those that a client would pick who sees all of them with their log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import grpc
import pytest

from citybus import Client, Completion, InvalidRequest
from citybus.v1 import generation_pb2 as pb
from citybus.v1 import generation_pb2_grpc
from tests.harness import Bus, running_bus

EXECUTOR = ("--num-blocks", "24", "--max-sequences", "6", "--num-threads", "1")
"""Six samples of up to four blocks each: some are preempted, and scored again."""


@pytest.fixture
def best_bus(tiny: Path, tmp_path: Path) -> Iterator[Bus]:
    flags = ("--journal", str(tmp_path / "journal"))
    with running_bus(tiny, tmp_path / "bus", executor=EXECUTOR, scheduler=flags) as bus:
        yield bus


def options(length: int, **changes: Any) -> dict[str, Any]:
    ids = [(7 * position + length) % 250 for position in range(length)]
    return {"token_ids": ids, "temperature": 1.2, "seed": 7, "max_tokens": 30, "ignore_eos": True} | changes


def ranked(everybody: list[Completion]) -> list[tuple[float, tuple[int, ...], str]]:
    """Score, tokens and text of all samples, the best first."""
    scored = []
    for completion in everybody:
        logprobs = [each.logprob for each in completion.logprobs if each.logprob is not None]
        assert len(logprobs) == len(completion.token_ids)
        scored.append((fmean(logprobs), completion.token_ids, completion.text))
    return sorted(scored, key=lambda each: -each[0])


def check(found: list[Completion], best: list[tuple[float, tuple[int, ...], str]]) -> None:
    assert [completion.token_ids for completion in found] == [tokens for _, tokens, _ in best]
    assert [completion.text for completion in found] == [text for _, _, text in best]
    assert [completion.finish.score for completion in found] == pytest.approx([score for score, _, _ in best], rel=1e-5)


def test_the_best_are_told_in_their_order(best_bus: Bus) -> None:
    with Client(best_bus.address) as client:
        for length in (15, 16, 17, 33):
            everybody = ranked(client.samples(**options(length, n=6, logprobs=0)))
            assert len({score for score, _, _ in everybody}) == 6
            check(client.samples(**options(length, n=2, best_of=6)), everybody[:2])
            check([client.complete(**options(length, best_of=6))], everybody[:1])
            told = client.samples(**options(length, n=2, best_of=6, logprobs=1))
            check(told, everybody[:2])
            assert all(len(completion.logprobs) == 30 for completion in told)
        stop = everybody[0][1][10]
        early = ranked(client.samples(**options(33, n=6, logprobs=0, stop_token_ids=[stop])))
        check(client.samples(**options(33, n=5, best_of=6, stop_token_ids=[stop])), early[:5])
        for n, best_of in ((3, 2), (1, 0), (1, 65), (2, 10**9)):
            with pytest.raises(InvalidRequest, match=rf"samples\.best_of must be from samples\.n, which is {n}, to 64"):
                client.samples(**options(9, n=n, best_of=best_of))
    best_bus.wait_idle()


@pytest.mark.parametrize("killed", ["scheduler", "executor"])
def test_the_best_are_the_same_after_a_kill(best_bus: Bus, killed: str) -> None:
    """Nothing was told before; what the samples scored before is scored again."""
    changes = {"max_tokens": 100, "n": 2, "best_of": 4}
    with Client(best_bus.address) as client:
        expected = client.samples(**options(33, **changes))
        before = best_bus.status().totals.generated_tokens
        stream = client.generate(**options(33, **changes, request_id="best"))
        assert stream.request_id() == "best"
        while best_bus.status().totals.generated_tokens < before + 100:
            pass
        service = best_bus.scheduler if killed == "scheduler" else best_bus.executor
        service.kill()
        service.restart()
        found: list[list[int]] = [[], []]
        for delta in stream:
            found[delta.sample] += delta.token_ids
        assert [tuple(tokens) for tokens in found] == [completion.token_ids for completion in expected]
        assert [finish.score for finish in stream.finishes] == [completion.finish.score for completion in expected]
    with grpc.insecure_channel(best_bus.address) as channel:
        attach = pb.AttachRequest(request_id="best", next_indexes=[100, 30])
        late = list(generation_pb2_grpc.GenerationServiceStub(channel).Attach(attach, timeout=60))
    assert [(each.sample, list(each.token_ids)) for each in late] == [(0, []), (1, found[1][30:])]
    best_bus.wait_idle()
