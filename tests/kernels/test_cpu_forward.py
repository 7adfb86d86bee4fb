"""The native forward pass against its definition in float64, and its bits in every batch and chunk."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kernels.cpu.library import InstructionSet, NativeLibrary, Weight
from tests.kernels.random_llama import RandomLlama, Runner, Sizes, distance, prompts, same_bits

LENGTHS = [1, 15, 16, 17, 31, 32, 33, 127, 129, 300]
SHAPES = [
    Sizes(heads=9, kv_heads=3, head_dim=64, hidden=72, inner=100, vocab=101, tied=True),
    Sizes(heads=4, kv_heads=4, head_dim=80, hidden=33, inner=17, vocab=33),
    Sizes(heads=8, kv_heads=2, head_dim=96, hidden=64, inner=48, vocab=65),
    Sizes(heads=8, kv_heads=1, head_dim=128, hidden=50, inner=31, vocab=45, tied=True),
    Sizes(heads=1, kv_heads=1, head_dim=16, hidden=96, inner=1, vocab=2),
    Sizes(heads=64, kv_heads=1, head_dim=16, hidden=16, inner=40, vocab=17),
]
SMALL = Sizes(heads=6, kv_heads=2, head_dim=32, hidden=40, inner=50, vocab=37)


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_logits_are_those_of_the_definition(library: NativeLibrary, isa: InstructionSet, sizes: Sizes) -> None:
    llama = RandomLlama(sizes)
    sequences = prompts(LENGTHS, sizes.vocab)
    whole = Runner(llama.native(library, isa), sizes, sequences).run(512)
    for tokens, logits in zip(sequences, whole, strict=True):
        assert distance(logits, llama.dense(tokens)) < 0.02, len(tokens)


def test_a_single_unseen_key_would_be_noticed() -> None:
    """Otherwise the bound above would prove little about attention."""
    llama = RandomLlama(SHAPES[0])
    (tokens,) = prompts([33], SHAPES[0].vocab)
    for unseen in (0, 15, 16, 31):
        assert distance(llama.dense(tokens, unseen)[unseen + 1 :], llama.dense(tokens)[unseen + 1 :]) > 0.1, unseen


@pytest.mark.parametrize("sizes", [SHAPES[0], SHAPES[1], SHAPES[3]], ids=str)
def test_a_token_has_the_same_bits_in_every_batch_and_chunk(
    library: NativeLibrary, isa: InstructionSet, sizes: Sizes
) -> None:
    sequences = prompts(LENGTHS, sizes.vocab)
    model = RandomLlama(sizes).native(library, isa, 2)
    alone = [Runner(model, sizes, [tokens], seed=5).run(512)[0] for tokens in sequences]
    for chunk in (1, 5, 16, 17, 100, 512):
        assert same_bits(Runner(model, sizes, sequences).run(chunk), alone), chunk


def test_prefills_and_decodes_share_a_step(library: NativeLibrary, isa: InstructionSet) -> None:
    sequences = prompts(LENGTHS, SMALL.vocab)
    model = RandomLlama(SMALL).native(library, isa, 2)
    alone = [Runner(model, SMALL, [tokens]).run(512)[0] for tokens in sequences]
    chance = random.Random(1)
    mixed = Runner(model, SMALL, sequences)
    while any(missing := [len(tokens) - done for tokens, done in zip(sequences, mixed.computed, strict=True)]):
        some = [row for row, count in enumerate(missing) if count and chance.random() < 0.7]
        counts = {row: min(missing[row], chance.choice((1, 1, 3, 16, 50, 97))) for row in some}
        if counts:
            mixed.step(counts)
    assert same_bits([torch.stack(rows) for rows in mixed.logits], alone)


def test_three_hundred_sequences(library: NativeLibrary, isa: InstructionSet) -> None:
    sequences = prompts([1 + index % 35 for index in range(300)], SMALL.vocab)
    model = RandomLlama(SMALL).native(library, isa, 2)
    together = Runner(model, SMALL, sequences).run(16)
    assert same_bits(
        [together[row] for row in range(0, 300, 43)],
        [Runner(model, SMALL, [sequences[row]]).run(512)[0] for row in range(0, 300, 43)],
    )


@pytest.mark.parametrize("block_size", [32, 48])
def test_blocks_of_more_tokens(library: NativeLibrary, isa: InstructionSet, block_size: int) -> None:
    sequences = prompts(LENGTHS, SMALL.vocab)
    model = RandomLlama(SMALL).native(library, isa)
    usual = Runner(model, SMALL, sequences).run(64)
    assert same_bits(Runner(model, SMALL, sequences, block_size).run(64), usual)


def test_a_sequence_of_nan_stays_alone(library: NativeLibrary, isa: InstructionSet) -> None:
    """Nor does it leave anything in the memory that the next step is computed in."""
    sequences = prompts([33, 40, 20], SMALL.vocab)
    model = RandomLlama(SMALL).native(library, isa)
    clean = Runner(model, SMALL, sequences).run(512)
    struck = Runner(model, SMALL, sequences)
    struck.step({0: 30, 1: 30, 2: 20})
    struck.pools[:, struck.tables[1]] = torch.nan
    struck.step({1: 10, 0: 3})
    assert torch.stack(struck.logits[1][30:]).isnan().all()
    assert same_bits([torch.stack(struck.logits[0]), torch.stack(struck.logits[2])], [clean[0], clean[2]])
    assert same_bits(Runner(model, SMALL, sequences).run(512), clean)


def test_scores_of_any_size_have_a_softmax(library: NativeLibrary, isa: InstructionSet) -> None:
    """The greatest has all the weight, and its power is 1 whatever the number."""
    llama = RandomLlama(SMALL)
    for weight in (Weight.QUERY, Weight.KEY):
        for layer in range(SMALL.layers):
            llama.weights[weight, layer] *= 1e6
    sequences = prompts([140], SMALL.vocab)
    (logits,) = Runner(llama.native(library, isa), SMALL, sequences).run(512)
    assert logits.isfinite().all()


def test_instruction_sets_agree(library: NativeLibrary) -> None:
    sequences = prompts(LENGTHS, SMALL.vocab)
    llama = RandomLlama(SMALL)
    results = [Runner(llama.native(library, isa), SMALL, sequences).run(64) for isa in library.instruction_sets()]
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert distance(left, right.double()) < 0.01


def test_many_short_steps_on_more_threads_than_cores(library: NativeLibrary) -> None:
    isa = library.instruction_sets()[-1]
    llama = RandomLlama(SMALL)
    sequences = prompts([60] * 9, SMALL.vocab)
    expected = Runner(llama.native(library, isa), SMALL, sequences).run(512)
    model = llama.native(library, isa, 5)
    assert same_bits(Runner(model, SMALL, sequences).run(1), expected)


def test_rows_that_do_not_draw_have_no_logits(library: NativeLibrary) -> None:
    isa = library.instruction_sets()[-1]
    model = RandomLlama(SMALL).native(library, isa)
    sequences = prompts([20, 7], SMALL.vocab)
    every = Runner(model, SMALL, sequences).run(512)
    runner = Runner(model, SMALL, sequences)
    inputs = runner.inputs({0: 20, 1: 7})
    some = model.forward(replace(inputs, drawing_rows=torch.tensor([19, 26])), runner.pools)
    assert same_bits([some], [torch.stack([every[0][-1], every[1][-1]])])
    assert model.forward(replace(inputs, drawing_rows=torch.tensor([], dtype=torch.int64)), runner.pools).shape == (
        0,
        37,
    )


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_the_likeliest_is_the_first_that_has_the_greatest_logit(
    library: NativeLibrary, isa: InstructionSet, sizes: Sizes
) -> None:
    """Every token is there twice, and NaN is no logit: not that of a token, nor that of a whole row."""
    llama, half = RandomLlama(sizes), sizes.vocab // 2
    llama.weights[Weight.HEAD, 0][half : 2 * half] = llama.weights[Weight.HEAD, 0][:half]
    llama.weights[Weight.EMBEDDING, 0][0] = torch.nan
    if not sizes.tied:
        llama.weights[Weight.HEAD, 0][sizes.vocab - 1] = torch.nan
    runner = Runner(llama.native(library, isa, 3), sizes, prompts(LENGTHS, sizes.vocab))
    inputs = runner.inputs({row: len(tokens) for row, tokens in enumerate(runner.sequences)})
    logits = runner.model.forward(inputs, runner.pools).nan_to_num(nan=-torch.inf)
    firsts = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert runner.model.likeliest(inputs, runner.pools).tolist() == firsts
    assert len(set(firsts)) >= min(half, 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token_ids", [37] * 20),
        ("token_ids", [-1] * 20),
        ("slots", [16 * 5] * 20),
        ("slots", [-1] * 20),
        ("block_tables", [[0, 5]]),
        ("block_tables", [[0]]),
        ("lengths", [33]),
        ("lengths", [19]),
        ("query_starts", [0, 19]),
        ("query_starts", [1, 20]),
        ("drawing_rows", [20]),
        ("drawing_rows", [0] * 21),
    ],
)
def test_what_does_not_exist_is_refused(library: NativeLibrary, name: str, value: list[int]) -> None:
    model = RandomLlama(SMALL).native(library, library.instruction_sets()[-1])
    runner = Runner(model, SMALL, prompts([20], SMALL.vocab))
    assert runner.pools.shape[1] == 5
    with pytest.raises(ValueError):
        model.forward(replace(runner.inputs({0: 20}), **{name: torch.tensor(value)}), runner.pools)
    assert runner.pools.isnan().all()


def test_heads_that_fill_no_register_are_refused(library: NativeLibrary) -> None:
    with pytest.raises(ValueError):
        RandomLlama(replace(SMALL, head_dim=8)).native(library, library.instruction_sets()[-1])
