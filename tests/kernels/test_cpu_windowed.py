"""The native forward pass with windows and softly capped scores: its definition in float64, and its bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cpu.library import InstructionSet, NativeLibrary
from tests.kernels.random_llama import RandomLlama, Runner, Sizes, distance, prompts, same_bits

W = 24
LENGTHS = [1, W - 1, W, W + 1, 3 * W, 129, 300]
SMALL = Sizes(heads=6, kv_heads=2, head_dim=32, hidden=40, inner=50, vocab=37)
KINDS = [
    replace(SMALL, windows=(W, W)),
    replace(SMALL, windows=(W, None)),
    replace(SMALL, windows=(1, 150)),
    replace(SMALL, windows=(128, 127)),
    replace(SMALL, heads=8, kv_heads=1, head_dim=80, windows=(W, 17), soft_cap=2.0),
    replace(SMALL, soft_cap=0.7),
    replace(SMALL, soft_cap=50.0),
]


@pytest.mark.parametrize("sizes", KINDS, ids=str)
def test_logits_are_those_of_the_definition(library: NativeLibrary, isa: InstructionSet, sizes: Sizes) -> None:
    llama = RandomLlama(sizes)
    sequences = prompts(LENGTHS, sizes.vocab)
    whole = Runner(llama.native(library, isa), sizes, sequences).run(512)
    for tokens, logits in zip(sequences, whole, strict=True):
        assert distance(logits, llama.dense(tokens)) < 0.02, len(tokens)


@pytest.mark.parametrize(
    "other", [{"windows": (W + 1, W)}, {"windows": (W, W - 1)}, {"windows": (W, W), "soft_cap": 4.0}], ids=str
)
def test_another_window_or_a_cap_would_be_noticed(other: dict[str, object]) -> None:
    (tokens,) = prompts([72], SMALL.vocab)
    usual = RandomLlama(replace(SMALL, windows=(W, W))).dense(tokens)
    changed = RandomLlama(replace(SMALL, **other)).dense(tokens)  # type: ignore[arg-type]
    assert distance(changed[W:], usual[W:]) > 0.05


@pytest.mark.parametrize("sizes", KINDS[:5], ids=str)
def test_a_token_has_the_same_bits_in_every_batch_and_chunk(
    library: NativeLibrary, isa: InstructionSet, sizes: Sizes
) -> None:
    sequences = prompts(LENGTHS, sizes.vocab)
    model = RandomLlama(sizes).native(library, isa, 2)
    alone = [Runner(model, sizes, [tokens], seed=5).run(512)[0] for tokens in sequences]
    for chunk in (1, 7, W, 5 * W):
        assert same_bits(Runner(model, sizes, sequences).run(chunk), alone), chunk


def test_windows_as_long_as_the_sequences_change_no_bit(library: NativeLibrary, isa: InstructionSet) -> None:
    sequences = prompts(LENGTHS, SMALL.vocab)
    without = Runner(RandomLlama(SMALL).native(library, isa), SMALL, sequences).run(64)
    wide = replace(SMALL, windows=(300, 1000))
    assert same_bits(Runner(RandomLlama(wide).native(library, isa), wide, sequences).run(64), without)


@pytest.mark.parametrize(("window", "count"), [(W, 1), (W, 20), (1, 1), (40, 55), (150, 1), (150, 60)])
def test_blocks_outside_of_every_window_are_not_read(
    library: NativeLibrary, isa: InstructionSet, window: int, count: int
) -> None:
    sizes = replace(SMALL, windows=(window, window))
    sequences = prompts([300, 33], sizes.vocab)
    model = RandomLlama(sizes).native(library, isa)
    clean = Runner(model, sizes, sequences).run(512)
    struck = Runner(model, sizes, sequences)
    struck.step({0: 300 - count, 1: 32})
    unseen = (300 - count + 1 - window) // 16
    struck.pools[:, struck.tables[0, :unseen]] = torch.nan
    struck.step({0: count, 1: 1})
    assert same_bits([torch.stack(rows) for rows in struck.logits], clean)


def test_a_negative_window_or_cap_is_refused(library: NativeLibrary) -> None:
    for sizes in (replace(SMALL, windows=(W, -1)), replace(SMALL, soft_cap=-1.0)):
        with pytest.raises(ValueError):
            RandomLlama(sizes).native(library, library.instruction_sets()[-1])
