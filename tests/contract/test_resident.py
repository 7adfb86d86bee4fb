"""What every step executor says is resident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.resident import ResidentSequence
from common.step import BlockCopy, SealedBlock
from common.step_executor import StepExecutor
from tests.contract.session import (
    GREEDY,
    OTHER,
    PROMPT,
    SAMPLED,
    Session,
    cached,
    grow,
    new,
    residents,
)


def test_what_is_resident_is_told_whole(executor: StepExecutor) -> None:
    info = executor.describe()
    session = Session(executor)
    seals = (SealedBlock(0, b"a" * 16), SealedBlock(2, b"b" * 16))
    first = new(1, PROMPT[:20], [0, 1], sampling=SAMPLED)
    drawn = session.tokens(new_sequences=(first, new(2, OTHER[:40], [2], count=16)), sealed=seals)
    (page,) = executor.resident(256)
    assert (page.epoch, page.last_step) == (info.epoch, 1)
    expected = replace(SAMPLED, temperature=page.sequences[0].sampling.temperature)
    assert expected.temperature == pytest.approx(SAMPLED.temperature)
    held = residents(executor)
    assert held[1].token_ids == (*PROMPT[:20], drawn[1])
    assert (held[1].num_prompt_tokens, held[1].num_computed_tokens, held[1].block_ids) == (20, 20, (0, 1))
    assert held[1].sampling.seed == SAMPLED.seed
    assert held[2] == ResidentSequence(2, tuple(OTHER[:40]), 40, 16, (2,), GREEDY, 0)
    assert cached(executor) == {0: b"a" * 16, 2: b"b" * 16}
    back = new(7, [*PROMPT[:13], 1, 2], [5], prompt=13, count=14)
    session.step(preempted_ids=(1,), new_sequences=(back,), scheduled=(grow(2, 6, count=16),))
    held = residents(executor)
    assert held[7] == ResidentSequence(7, (*PROMPT[:13], 1, 2), 13, 14, (5,), GREEDY, 0)
    assert held[2] == ResidentSequence(2, tuple(OTHER[:40]), 40, 32, (2, 6), GREEDY, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_pages_hold_all_and_none_is_too_large(executor: StepExecutor, size: int) -> None:
    session = Session(executor)
    rows = tuple(new(key, PROMPT[key : key + 17], [2 * key, 2 * key + 1]) for key in range(3))
    seals = tuple(SealedBlock(2 * key, bytes([key] * 16)) for key in range(3))
    session.step(new_sequences=rows, sealed=seals[:2])
    session.step(sealed=seals[2:], scheduled=(grow(0),))
    pages = list(executor.resident(size))
    assert all(max(len(page.sequences), len(page.cached)) <= size for page in pages)
    assert len(pages) == -(-3 // size)
    assert sorted(held.sequence_id for page in pages for held in page.sequences) == [0, 1, 2]
    assert sorted(seal.block_id for page in pages for seal in page.cached) == [0, 2, 4]
    assert {page.last_step for page in pages} == {2}


def test_nothing_resident_is_one_empty_page(executor: StepExecutor) -> None:
    Session(executor)
    (page,) = executor.resident(5)
    assert (page.sequences, page.cached, page.last_step) == ((), (), 0)


def test_a_block_keeps_its_name_until_it_is_handed_out_anew(executor: StepExecutor) -> None:
    session = Session(executor)
    names = {block: bytes([block] * 16) for block in range(4)}
    session.step(new_sequences=(new(1, PROMPT, range(4)),), sealed=tuple(SealedBlock(*item) for item in names.items()))
    session.step(finished_ids=(1,))
    assert cached(executor) == names, "who held it has left, and it is still there"
    session.step(new_sequences=(new(2, PROMPT[:17], [0, 9], computed=16),))
    assert cached(executor) == names, "read again"
    session.step(new_sequences=(new(3, OTHER[:3], [1]),))
    assert set(cached(executor)) == {0, 2, 3}, "written by a new sequence"
    session.step(copies=(BlockCopy(0, 2),))
    assert set(cached(executor)) == {0, 3}, "copied over"
    session.decode(2, 18, 15, [])
    assert set(cached(executor)) == {0, 3}
    session.decode(2, 33, 1, [3])
    assert set(cached(executor)) == {0}, "grown into"
    anew = new(4, OTHER[:17], [3, 4])
    session.step(finished_ids=(2,), new_sequences=(anew,), sealed=(SealedBlock(3, b"n" * 16),))
    assert cached(executor) == {0: names[0], 3: b"n" * 16}, "sealed again in the step that writes it"


def test_what_had_not_to_be_computed_is_remembered(executor: StepExecutor) -> None:
    session = Session(executor)
    names = tuple(SealedBlock(block, bytes([block] * 16)) for block in range(2))
    session.step(new_sequences=(new(1, PROMPT[:35], range(3)),), sealed=names)
    session.step(finished_ids=(1,), new_sequences=(new(2, PROMPT[:35], [0, 1, 5], computed=32),))
    session.step(scheduled=(grow(2),))
    assert residents(executor)[2].num_reused_tokens == 32
