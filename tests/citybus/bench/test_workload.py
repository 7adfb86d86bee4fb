"""Calls, their arrivals and their prompts."""

from __future__ import annotations

import itertools
import statistics

import pytest

from citybus.bench.arrivals import Arrivals, timed
from citybus.bench.prompts import prompts
from citybus.bench.workload import Call, Lengths, drawn, fitted, sampled, with_shared_prefix


def test_lengths_are_a_number_or_a_range() -> None:
    assert Lengths.parse("7") == Lengths(7, 7)
    assert Lengths.parse("16-512") == Lengths(16, 512)
    for wrong in ("", "-5", "0", "9-3", "a-b", "3-", "1.5"):
        with pytest.raises(ValueError, match="expected a number of tokens"):
            Lengths.parse(wrong)


def test_drawn_lengths_fill_their_ranges_and_depend_on_the_seed_only() -> None:
    calls = drawn(500, Lengths(1, 4), Lengths(9, 9), seed=1)
    assert {call.num_prompt for call in calls} == {1, 2, 3, 4}
    assert {(call.at, call.num_output) for call in calls} == {(0.0, 9)}
    assert drawn(500, Lengths(1, 4), Lengths(9, 9), seed=1) == calls != drawn(500, Lengths(1, 4), Lengths(9, 9), 2)


def test_sampled_takes_every_call_before_any_twice() -> None:
    calls = [Call(0.0, size, 1) for size in range(1, 5)]
    chosen = sampled(calls, 10, seed=3)
    assert sorted(call.num_prompt for call in chosen[:4]) == [1, 2, 3, 4]
    assert sorted(call.num_prompt for call in chosen[4:8]) == [1, 2, 3, 4]
    assert len(chosen) == 10


def test_fitted_scales_everything_by_one_factor() -> None:
    calls = [Call(1.0, 6000, 2192, prefix=(4, 5)), Call(2.0, 100, 3)]
    assert fitted(calls, 1024) == [
        Call(1.0, 750, 274, prefix=(4, 5), prefix_block=64),
        Call(2.0, 12, 1, prefix_block=64),
    ]
    assert fitted(calls, 8192) == calls


def test_prompts_have_their_lengths_and_share_the_tokens_of_shared_prefixes() -> None:
    calls = [
        Call(0.0, 20, 1, prefix=(1, 2), prefix_block=8),
        Call(0.0, 20, 1, prefix=(1, 3), prefix_block=8),
        Call(0.0, 10, 1, prefix=(1, 2), prefix_block=8),
        Call(0.0, 12, 1),
    ]
    first, second, short, alone = made = prompts(calls, vocab_size=50_000, seed=7)
    assert [len(one) for one in made] == [20, 20, 10, 12]
    assert first[:8] == second[:8] == short[:8]
    assert first[8:10] == short[8:10]
    assert first[8:16] != second[8:16]
    assert first[16:] != second[16:]
    assert alone[:8] != first[:8]
    assert prompts(calls, 50_000, 7) == made != prompts(calls, 50_000, 8)
    assert max(max(one) for one in prompts(calls, 3, 7)) == 2


def test_a_shared_prefix_is_put_in_front() -> None:
    calls = with_shared_prefix([Call(0.0, 5, 1)] * 3, num_tokens=10, groups=2)
    assert [(call.num_prompt, call.prefix) for call in calls] == [(15, (0,)), (15, (1,)), (15, (0,))]
    first, other, again = prompts(calls, 50_000, 0)
    assert first[:10] == again[:10] != other[:10]
    assert first[10:] != again[10:]


@pytest.mark.parametrize(("text", "variation"), [("poisson", 1.0), ("gamma:1", 1.0), ("gamma:3.5", 3.5)])
def test_gaps_have_the_mean_and_the_variation_asked_for(text: str, variation: float) -> None:
    calls = timed([Call(9.0, 1, 1)] * 40_000, Arrivals.parse(text, rate=8.0), seed=5)
    gaps = [after.at - before.at for before, after in itertools.pairwise(calls)]
    mean = statistics.fmean(gaps)
    assert calls[0].at == 0.0
    assert mean == pytest.approx(1 / 8, rel=0.05)
    assert statistics.stdev(gaps) / mean == pytest.approx(variation, rel=0.05)


def test_the_same_seed_gives_the_same_times() -> None:
    calls = [Call(0.0, 1, 1)] * 5
    poisson = Arrivals("poisson", 2.0)
    assert timed(calls, poisson, 1) == timed(calls, poisson, 1) != timed(calls, poisson, 2)


def test_a_trace_keeps_its_times_or_is_stretched_to_a_rate() -> None:
    calls = [Call(at, 1, 1) for at in (10.0, 11.0, 14.0)]
    assert [call.at for call in timed(calls, Arrivals("trace"), 0)] == [0.0, 1.0, 4.0]
    assert [call.at for call in timed(calls, Arrivals("trace", rate=4.0), 0)] == [0.0, 0.125, 0.5]
    assert [call.at for call in timed(calls, Arrivals("all-at-once"), 0)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "rate", "reason"),
    [
        ("poisson", None, "give --rate"),
        ("gamma:2", None, "give --rate"),
        ("gamma:0", 1.0, "more than 0"),
        ("gamma:x", 1.0, "expected poisson, gamma:CV"),
        ("gamma", 1.0, "expected poisson, gamma:CV"),
        ("sometimes", 1.0, "expected poisson, gamma:CV"),
        ("all-at-once", 1.0, "leave --rate out"),
        ("poisson", -1.0, "more than 0"),
    ],
)
def test_arrivals_that_make_no_sense_are_refused(text: str, rate: float | None, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Arrivals.parse(text, rate)
