"""What the engine says: transformers' tokens, whatever the chunks, the batch, the blocks and the preemptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from common.step import BlockCopy, NewSequence, Sampling, ScheduledSequence
from executor_svc.engine import Engine
from tests.checkpoints import BOS, write_chain, write_tiny
from tests.executor.conftest import MakeEngine
from tests.executor.driver import GREEDY, Session, generate

LENGTHS = [1, 7, 15, 16, 17, 31, 32, 33, 65]
PROMPTS = [[BOS, *((7 * length + 3 * index) % 250 for index in range(1, length))] for length in LENGTHS]
COUNT = 24


def transformers_greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    output: Any = model.generate(
        torch.tensor([prompt]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None
    )
    return list(output[0, len(prompt) :].tolist())


@pytest.fixture(scope="module")
def reference(tiny: Path) -> list[list[int]]:
    return [transformers_greedy(tiny, prompt, COUNT) for prompt in PROMPTS]


@pytest.mark.parametrize("chunk", [1, 7, 15, 16, 17, 31, 32, 33, 512])
def test_greedy_tokens_are_those_of_transformers(
    make_engine: MakeEngine, reference: list[list[int]], chunk: int
) -> None:
    engine = make_engine(num_blocks=256)
    assert generate(engine, PROMPTS, COUNT, chunks=[chunk], seed=chunk) == reference
    assert generate(engine, PROMPTS[-1:], COUNT, chunks=[chunk]) == reference[-1:]


@pytest.mark.parametrize("block_size", [1, 5, 32])
def test_any_block_size(make_engine: MakeEngine, reference: list[list[int]], block_size: int) -> None:
    engine = make_engine(num_blocks=1024, block_size=block_size)
    assert generate(engine, PROMPTS, COUNT, chunks=[1, 7, 33]) == reference


def test_preempted_sequences_go_on_as_if_nothing_had_been(make_engine: MakeEngine, reference: list[list[int]]) -> None:
    engine = make_engine(num_blocks=4096)
    for seed in range(3):
        assert generate(engine, PROMPTS, COUNT, chunks=[5, 64], preempt=0.2, seed=seed) == reference


@pytest.mark.parametrize("options", [{"tie": True}, {"num_layers": 4, "seed": 5}])
def test_other_models(tmp_path: Path, make_engine: MakeEngine, options: dict[str, Any]) -> None:
    folder = write_tiny(tmp_path, **options)
    engine = make_engine(folder, num_blocks=64)
    assert generate(engine, PROMPTS[3:6], 12, chunks=[7]) == [
        transformers_greedy(folder, prompt, 12) for prompt in PROMPTS[3:6]
    ]


def test_sampled_tokens_depend_on_seed_and_index_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=2048)
    samplings = [Sampling(0.9, 0.95, 20 * (key % 2), 0.01, seed=2**64 - 1 - key) for key in range(len(PROMPTS))]
    alone = [
        generate(engine, [prompt], COUNT, samplings=[sampling])[0]
        for prompt, sampling in zip(PROMPTS, samplings, strict=True)
    ]
    assert generate(engine, PROMPTS, COUNT, samplings=samplings, chunks=[3, 16]) == alone
    assert generate(engine, PROMPTS, COUNT, samplings=samplings, chunks=[8], preempt=0.15) == alone
    other = generate(engine, PROMPTS, COUNT, samplings=[Sampling(0.9, seed=key) for key in range(len(PROMPTS))])
    assert all(one != two for one, two in zip(alone, other, strict=True))


def test_chain_follows_its_script_in_bfloat16(tmp_path: Path, make_engine: MakeEngine) -> None:
    folder = write_chain(tmp_path, {token: (token * 7 + 1) % 256 for token in range(256)}, dtype="bfloat16")
    engine = make_engine(folder)
    (output,) = generate(engine, [[3]], 20, samplings=[Sampling(1.0, seed=4)])
    expected = [3]
    for _ in range(20):
        expected.append((expected[-1] * 7 + 1) % 256)
    assert output == expected[1:]


def test_a_cached_prefix_is_read_where_the_table_says(engine: Engine, reference: list[list[int]]) -> None:
    session = Session(engine)
    prompt = tuple(PROMPTS[-1])
    first = session.drawn(new_sequences=(NewSequence(1, prompt, 65, 0, 65, (9, 3, 30, 12, 5), GREEDY),))
    shared = session.drawn(
        finished_ids=(1,), new_sequences=(NewSequence(2, prompt, 65, 64, 1, (9, 3, 30, 12, 40), GREEDY),)
    )
    assert first == shared == reference[-1][:1]


def test_a_copied_block_is_read_and_the_source_stays(engine: Engine, reference: list[list[int]]) -> None:
    """A sub-block prefix hit: 60 tokens are cached, the last 12 of them in a block that others hold too."""
    session = Session(engine)
    prompt = tuple(PROMPTS[-1])
    session.step(new_sequences=(NewSequence(1, prompt, 65, 0, 60, (0, 1, 2, 3), GREEDY),))
    both = session.drawn(
        copies=(BlockCopy(3, 20),),
        new_sequences=(NewSequence(2, prompt, 65, 60, 5, (0, 1, 2, 20, 21), GREEDY),),
    )
    assert both == reference[-1][:1]
    assert session.drawn(scheduled=(ScheduledSequence(1, 5, (22,)),)) == reference[-1][:1]


def test_copies_happen_before_their_source_is_written_in_the_same_step(
    engine: Engine, reference: list[list[int]]
) -> None:
    session = Session(engine)
    prompt = tuple(PROMPTS[-1])
    session.step(new_sequences=(NewSequence(1, prompt, 65, 0, 60, (0, 1, 2, 3), GREEDY),))
    tokens = session.drawn(
        finished_ids=(1,),
        copies=(BlockCopy(3, 20),),
        new_sequences=(
            NewSequence(3, (1, 2, 3), 3, 0, 3, (3,), GREEDY),
            NewSequence(2, prompt, 65, 60, 5, (0, 1, 2, 20, 21), GREEDY),
        ),
    )
    assert tokens[1] == reference[-1][0]


def test_a_row_may_read_blocks_that_another_one_fills_in_the_same_step(
    engine: Engine, reference: list[list[int]]
) -> None:
    session = Session(engine)
    prompt = tuple(PROMPTS[-1])
    tokens = session.drawn(
        new_sequences=(
            NewSequence(2, prompt, 65, 64, 1, (0, 1, 2, 3, 9), GREEDY),
            NewSequence(1, prompt, 65, 0, 65, (0, 1, 2, 3, 4), GREEDY),
        )
    )
    assert tokens == [reference[-1][0]] * 2


def test_a_plan_need_not_know_the_token_drawn_before_it(engine: Engine, reference: list[list[int]]) -> None:
    session = Session(engine)
    prompt = tuple(PROMPTS[4])
    plans = [session.plan(new_sequences=(NewSequence(1, prompt, 17, 0, 17, (0, 1), GREEDY),))]
    plans += [session.plan(scheduled=(ScheduledSequence(1, 1),)) for _ in range(10)]
    assert [engine.step(plan).sampled[0].token_id for plan in plans] == reference[4][:11]


def test_wrong_keys_and_values_change_the_output(engine: Engine, reference: list[list[int]]) -> None:
    """That the tests above can fail: one block of the prefix holds something else."""
    session = Session(engine)
    prompt = tuple(PROMPTS[-1])
    session.step(new_sequences=(NewSequence(1, prompt, 65, 0, 65, (9, 3, 30, 12, 5), GREEDY),))
    session.step(new_sequences=(NewSequence(2, prompt[::-1], 65, 0, 64, (8, 2, 29, 11), GREEDY),))
    tokens = session.drawn(new_sequences=(NewSequence(3, prompt, 65, 64, 1, (9, 3, 29, 12, 40), GREEDY),))
    for _ in range(3):
        tokens += session.drawn(scheduled=(ScheduledSequence(3, 1),))
    assert tokens != reference[-1][:4]
