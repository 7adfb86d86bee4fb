"""Prompt lookup: what is guessed, for whom, and that answers with right and wrong guesses are those without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.grammar import Grammar, GrammarKind
from common.step import Draft, Sampling, StepPlan
from scheduler_svc.core import drafter
from scheduler_svc.core.beams import BeamParams
from scheduler_svc.core.request import Request
from tests.fakes import INFO
from tests.scheduler.core.driver import GREEDY, SMALL, Driver, request, search

PERIOD = (3, 1, 4, 1, 5)


def repeating(tokens: Sequence[int], index: int) -> int:
    """The text goes on as `PERIOD`, over and over."""
    return PERIOD[len(tokens) % len(PERIOD)]


def counting(tokens: Sequence[int], index: int) -> int:
    """Every token is new."""
    return 50 + index


def first_draft(asked: Request, count: int = 4) -> tuple[int, ...]:
    """The guess behind the first token of an answer."""
    driver = Driver(script=counting, speculative_tokens=count)
    driver.add(asked)
    driver.step()
    plan = driver.schedule()
    assert plan is not None
    (row,) = plan.scheduled
    assert row.num_tokens == 1
    assert plan.num_tokens == 1 + plan.num_draft_tokens
    drafts = [draft.token_ids for draft in plan.drafts]
    driver.drain()
    return drafts[0] if drafts else ()


@pytest.mark.parametrize(("reach", "guess"), [(9, (1, 2, 3, 4)), (8, ())])
def test_what_lies_too_far_back_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, reach: int, guess: tuple[int, ...]
) -> None:
    monkeypatch.setattr(drafter, "REACH", reach)
    assert first_draft(request(0, (8, 50, 1, 2, 3, 4, 5, 8))) == guess


@pytest.mark.parametrize(
    ("prompt", "guess"),
    [
        ((1, 50, 2, 3, 4, 5, 1), (2, 3, 4, 5)),
        ((6, 7, 8, 50, 1, 2, 3, 4, 9, 8, 50, 5, 6, 9, 6, 7, 8), (1, 2, 3, 4)),  # the longest match, not the latest
        ((*range(43, 51), 1, 2, 3, 4, 47, 48, 49, 50, 5, *range(43, 50)), (1, 2, 3, 4)),  # longer still
        ((6, 7, 8, 50, 1, 2, 6, 7, 8, 50, 3, 4, 6, 7, 8), (3, 4, 6, 7)),  # of equally long ones the latest
        ((8, 50, 1, 9, 8, 50, 2, 3, 4, 8), (2, 3, 4, 8)),
        ((50, 50), (50, 50, 50, 50)),
        ((4, 50, 5, 4), (5, 4, 50, 5)),  # goes on into what is guessed
        ((50, 1, 2, 3), ()),  # a single token
        ((2, 3), ()),
        ((1,), ()),
        ((50 << 24, 0, 0, 9, 50 << 24), ()),
        ((7 << 8, 50 << 8, 0, 9, 7), ()),  # the same bytes, between two tokens
        ((7, 50, 8, 7 << 8, 50 << 8, 0, 9, 7), (8, 7 << 8, 50 << 8, 0)),
    ],
)
def test_what_is_guessed_follows_the_latest_longest_repeat(prompt: tuple[int, ...], guess: tuple[int, ...]) -> None:
    driver = Driver(replace(INFO, vocab_size=2**32, block_size=64), script=counting, speculative_tokens=4)
    driver.add(request(1, prompt, max_tokens=9))
    driver.step()
    plan = driver.schedule()
    assert plan is not None
    assert [draft.token_ids for draft in plan.drafts] == ([guess] if guess else [])
    driver.drain()


@pytest.mark.parametrize(
    ("length", "max_tokens", "count", "size"),
    [
        (9, 9, 4, 4),
        (9, 9, 20, 6),  # positions 9 to 15: one is known, and the block ends
        (14, 9, 4, 1),
        (15, 9, 4, 0),  # the known token is the block's last
        (16, 9, 4, 4),  # the known token begins another
        (9, 3, 4, 1),  # after it one token is drawn in any case
        (9, 2, 4, 0),
    ],
)
def test_a_draft_has_the_room_of_the_block_and_of_the_answer(
    length: int, max_tokens: int, count: int, size: int
) -> None:
    assert first_draft(request(1, [50] * length, max_tokens=max_tokens), count) == (50,) * size


def test_guesses_are_fewer_after_wrong_ones_and_more_after_right_ones() -> None:
    """Twenty times the same, then something else for once, then the same again."""

    def script(tokens: Sequence[int], index: int) -> int:
        return 60 if index == 20 else 50

    driver = Driver(replace(INFO, block_size=256), script=script, speculative_tokens=8)
    driver.add(request(1, [50] * 4, max_tokens=50))
    sizes = [plan.num_draft_tokens for plan in drained(driver)]
    assert sizes == [0, 8, 8, 8, 0, 0, 2, 1, 2, 4, 1, 2, 4, 8, 0, 0]


def test_a_draft_has_what_the_step_has_left() -> None:
    """Eleven tokens a step: three are decoded, five begin a prompt, three are left for the first to guess."""
    driver = Driver(replace(INFO, max_step_tokens=11), script=counting, speculative_tokens=9)
    for key in range(3):
        driver.add(request(key, [50, 50, key, 50], max_tokens=9))
    driver.step()
    driver.add(request(3, [9] * 5, max_tokens=1))
    plan = driver.schedule()
    assert plan is not None
    assert plan.drafts == (Draft(0, (0, 50, 50)),)
    assert plan.num_tokens == 11
    driver.drain()


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, repetition_penalty=1.1),
        replace(GREEDY, presence_penalty=0.5),
        replace(GREEDY, frequency_penalty=0.5),
        replace(GREEDY, logit_bias=((3, 1.0),)),
        replace(GREEDY, allowed_token_ids=(50, 51)),
        replace(GREEDY, banned_token_ids=(3,)),
        replace(GREEDY, min_tokens=2, end_token_ids=(3,)),
        replace(GREEDY, bad_words=((3,),)),
        replace(GREEDY, num_logprobs=0),
        replace(GREEDY, num_prompt_logprobs=0),
        replace(GREEDY, grammar=Grammar(GrammarKind.REGEX, "a*")),
    ],
)
def test_who_asks_for_more_than_tokens_is_not_guessed_for(sampling: Sampling) -> None:
    assert first_draft(request(1, [50] * 5, max_tokens=9, sampling=sampling)) == ()
    plain = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, seed=3)
    assert first_draft(request(1, [50] * 5, max_tokens=9, sampling=plain)) == (50,) * 4


def test_a_search_is_not_guessed_for() -> None:
    driver = Driver(speculative_tokens=4)
    driver.add(search(1, [5] * 5, BeamParams(2, 1), max_tokens=5))
    driver.drain()
    assert driver.scheduler.totals.draft_tokens == 0


def test_without_speculation_nothing_is_guessed() -> None:
    assert first_draft(request(1, [50] * 5, max_tokens=9), 0) == ()


def drained(driver: Driver) -> list[StepPlan]:
    made = []
    while (plan := driver.schedule()) is not None:
        made.append(plan)
        driver.deliver()
    driver.drain()
    return made


def test_right_guesses_make_five_tokens_a_step() -> None:
    """A prompt of 10 tokens, 41 to come: one with the prompt, then five at a time where a block has room for them."""
    driver = Driver(script=repeating, speculative_tokens=4)
    driver.add(request(1, PERIOD * 2, max_tokens=41))
    made = drained(driver)
    sizes = [plan.num_draft_tokens for plan in made[1:] if plan.scheduled]
    assert sizes == [4, 0, 4, 4, 4, 0, 4, 4, 4, 0, 1]
    assert driver.scheduler.totals.draft_tokens == driver.scheduler.totals.accepted_draft_tokens == sum(sizes)
    assert driver.scheduler.totals.generated_tokens == 41


def contrary(tokens: Sequence[int], index: int) -> int:
    """7 and 8 stand together everywhere, followed by something new."""
    return (7, 8, 10 + index)[index % 3]


def test_wrong_guesses_cost_no_step_and_no_block() -> None:
    """As many steps as without, and blocks as they are needed."""
    driver = Driver(SMALL, script=contrary, speculative_tokens=3)
    driver.add(request(1, [7, 8], max_tokens=24))
    made = drained(driver)
    assert driver.scheduler.totals.draft_tokens == 5
    assert driver.scheduler.totals.accepted_draft_tokens == 0
    rows = [row for plan in made for row in plan.scheduled]
    assert [len(row.new_block_ids) for row in rows] == [int(position % 4 == 0) for position in range(2, 25)]


def test_who_is_left_out_of_a_step_is_guessed_for_as_before() -> None:
    """After wrong guesses they are one token long, also behind steps that a search had for itself."""
    driver = Driver(replace(INFO, max_step_tokens=6, block_size=256), script=contrary, speculative_tokens=3)
    driver.add(request(1, [7, 8], max_tokens=60))
    while len(driver.tokens[1]) < 12:
        driver.step()
    driver.add(search(2, [5], BeamParams(6, 1), max_tokens=5))
    made = drained(driver)
    assert any(len(plan.forks) == 6 and not plan.scheduled for plan in made), "nobody was left out"
    assert {len(draft.token_ids) for plan in made for draft in plan.drafts} == {1}


@pytest.mark.parametrize("stop", PERIOD)
def test_an_answer_ends_at_the_token_it_ends_at(stop: int) -> None:
    """A stop token in the middle of what a step draws: what lies behind it is not told."""
    told = []
    for count in (0, 4):
        driver = Driver(script=repeating, speculative_tokens=count)
        driver.add(request(1, [*PERIOD, *PERIOD, 9, 9], max_tokens=40, stop_token_ids=frozenset({stop})))
        driver.drain()
        told.append((driver.tokens[1], driver.outcomes[1].reason, driver.outcomes[1].stop_token_id))
    assert told[0] == told[1]
    assert told[0][0][-1] == stop


@pytest.mark.parametrize("keep", range(1, 12))
def test_a_stop_text_keeps_what_comes_before_it(keep: int) -> None:
    """The text stops within what a step has drawn: the tokens behind are dropped, and their blocks are given back."""
    driver = Driver(script=repeating, speculative_tokens=4)
    driver.add(request(1, PERIOD * 2, max_tokens=40))
    while len(driver.tokens[1]) < keep:
        driver.step()
    driver.stop(1, keep)
    driver.drain()
    assert len(driver.tokens[1]) == keep
    assert driver.scheduler.totals.generated_tokens == keep


def test_what_is_cached_are_tokens_that_were_drawn() -> None:
    """After an answer with right and wrong guesses, its whole text is a prefix hit, and goes on as without one."""

    def script(tokens: Sequence[int], index: int) -> int:
        return 60 + index if len(tokens) % 7 == 0 else repeating(tokens, index)

    driver = Driver(SMALL, script=script, speculative_tokens=3)
    driver.add(request(1, PERIOD * 2, max_tokens=17))
    driver.drain()
    totals = driver.scheduler.totals
    assert 0 < totals.accepted_draft_tokens < totals.draft_tokens
    again = [*PERIOD, *PERIOD, *driver.tokens[1]]
    driver.add(request(2, again, max_tokens=3))
    driver.drain()
    assert driver.outcomes[2].num_cached_tokens == len(again) - 1


@pytest.mark.parametrize("executed", [0, 1])
@pytest.mark.parametrize("unheard", [0, 3])
def test_a_draft_in_flight_when_the_scheduler_dies(executed: int, unheard: int) -> None:
    """Computed or not, heard of or not: who takes over tells each token once, and goes on."""
    driver = Driver(script=repeating, speculative_tokens=4)
    driver.add(request(1, PERIOD * 2, max_tokens=30))
    driver.step()
    driver.step()
    plan = driver.schedule()
    while plan is not None and not plan.drafts:
        driver.deliver()
        plan = driver.schedule()
    before = len(driver.tokens[1])
    driver.hand_over(executed, unheard)
    assert len(driver.tokens[1]) == before + 5 * executed
    driver.drain()
