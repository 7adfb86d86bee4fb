"""A Llama with random weights, computed by the native library and, densely in float64, by its definition."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kernels.cpu.library import InstructionSet, NativeLibrary, NativeModel, Shape, StepInputs, Weight, window_array

EPS = 1e-5


@dataclass(frozen=True, slots=True)
class Sizes:
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    inner: int
    vocab: int
    layers: int = 2
    tied: bool = False
    windows: tuple[int | None, ...] = (None, None)
    soft_cap: float = 0.0

    def of(self, weight: Weight) -> tuple[int, ...]:
        """Shape of a weight."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            Weight.EMBEDDING: (self.vocab, self.hidden),
            Weight.HEAD: (self.vocab, self.hidden),
            Weight.QUERY: (queries, self.hidden),
            Weight.KEY: (keys, self.hidden),
            Weight.VALUE: (keys, self.hidden),
            Weight.ATTENTION_OUT: (self.hidden, queries),
            Weight.GATE: (self.inner, self.hidden),
            Weight.UP: (self.inner, self.hidden),
            Weight.DOWN: (self.hidden, self.inner),
        }.get(weight, (self.hidden,))


class RandomLlama:
    """Weights in bfloat16; attention is sharp, so that every key counts."""

    def __init__(self, sizes: Sizes, seed: int = 0) -> None:
        self.sizes = sizes
        generator = torch.Generator().manual_seed(seed)
        layers = [weight for weight in Weight if weight not in (Weight.EMBEDDING, Weight.HEAD, Weight.LAST_NORM)]
        self.weights: dict[tuple[Weight, int], torch.Tensor] = {}
        for weight in Weight:
            for layer in range(sizes.layers if weight in layers else 1):
                shape = sizes.of(weight)
                numbers = torch.randn(shape, generator=generator)
                scaled = 1 + numbers / 4 if len(shape) == 1 else 1.4 * numbers / shape[1] ** 0.5
                self.weights[weight, layer] = scaled.bfloat16()
        if sizes.tied:
            self.weights[Weight.HEAD, 0] = self.weights[Weight.EMBEDDING, 0]

    def native(self, library: NativeLibrary, isa: InstructionSet, num_threads: int = 1) -> NativeModel:
        sizes = self.sizes
        shape = Shape(
            vocab_size=sizes.vocab,
            hidden_size=sizes.hidden,
            intermediate_size=sizes.inner,
            num_layers=sizes.layers,
            num_heads=sizes.heads,
            num_kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            tied_embeddings=sizes.tied,
            windows=window_array(sizes.windows),
            rms_norm_eps=EPS,
            soft_cap=sizes.soft_cap,
        )
        model = library.threads(isa, num_threads).model(shape)
        for (weight, layer), tensor in self.weights.items():
            if not (sizes.tied and weight is Weight.HEAD):
                model.set_weight(weight, tensor, layer)
        return model

    def dense(self, tokens: Sequence[int], unseen: int | None = None) -> torch.Tensor:
        """Float64 logits [tokens, vocab] of a whole sequence; position `unseen` is hidden from all after it."""
        sizes, count = self.sizes, len(tokens)
        hidden = self._weight(Weight.EMBEDDING)[torch.tensor(tokens)]
        cos, sin = (part.double() for part in angles(torch.arange(count), sizes.head_dim))
        causal = torch.full((count, count), -torch.inf, dtype=torch.float64).triu(1)
        if unseen is not None:
            causal[unseen + 1 :, unseen] = -torch.inf
        for layer in range(sizes.layers):
            normed = self._norm(hidden, Weight.ATTENTION_NORM, layer)
            queries, keys, values = (
                (normed @ self._weight(weight, layer).T).view(count, -1, sizes.head_dim)
                for weight in (Weight.QUERY, Weight.KEY, Weight.VALUE)
            )
            queries, keys = (_turn(part, cos[:, None], sin[:, None]) for part in (queries, keys))
            group = sizes.heads // sizes.kv_heads
            keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * sizes.head_dim**-0.5
            if sizes.soft_cap:
                scores = sizes.soft_cap * (scores / sizes.soft_cap).tanh()
            mask = causal + torch.full_like(causal, -torch.inf).tril(-(sizes.windows[layer] or count))
            attended = torch.einsum("hqk,khd->qhd", (scores + mask).softmax(-1), values).flatten(1)
            hidden = hidden + attended @ self._weight(Weight.ATTENTION_OUT, layer).T
            normed = self._norm(hidden, Weight.MLP_NORM, layer)
            gate, up = (normed @ self._weight(weight, layer).T for weight in (Weight.GATE, Weight.UP))
            hidden = hidden + (torch.nn.functional.silu(gate) * up) @ self._weight(Weight.DOWN, layer).T
        return self._norm(hidden, Weight.LAST_NORM) @ self._weight(Weight.HEAD).T

    def _weight(self, weight: Weight, layer: int = 0) -> torch.Tensor:
        return self.weights[weight, layer].double()

    def _norm(self, hidden: torch.Tensor, weight: Weight, layer: int = 0) -> torch.Tensor:
        return self._weight(weight, layer) * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + EPS)


def angles(positions: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    turned = positions[:, None].float() * 100.0 ** -(torch.arange(0, head_dim, 2) / head_dim)
    return turned.cos(), turned.sin()


def _turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@dataclass(slots=True)
class Runner:
    """Sequences on their way through a native model, in shuffled blocks of a pool that is NaN where nothing was stored.

    `logits` has a row for every token computed.
    """

    model: NativeModel
    sizes: Sizes
    sequences: Sequence[Sequence[int]]
    block_size: int = 16
    seed: int = 0
    pools: torch.Tensor = field(init=False)
    tables: torch.Tensor = field(init=False)
    computed: list[int] = field(init=False)
    logits: list[list[torch.Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        width = -(-max(map(len, self.sequences)) // self.block_size)
        num_blocks = width * len(self.sequences) + 3
        shape = (2 * self.sizes.layers, num_blocks, self.block_size, self.sizes.kv_heads, self.sizes.head_dim)
        self.pools = torch.full(shape, torch.nan, dtype=torch.bfloat16)
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(self.seed))
        self.tables = order[: width * len(self.sequences)].view(len(self.sequences), width)
        self.computed = [0] * len(self.sequences)
        self.logits = [[] for _ in self.sequences]

    def inputs(self, counts: dict[int, int]) -> StepInputs:
        """A step that computes so many tokens of these sequences."""
        rows = list(counts)
        spans = [torch.arange(self.computed[row], self.computed[row] + counts[row]) for row in rows]
        slots = [
            self.tables[row, span // self.block_size] * self.block_size + span % self.block_size
            for row, span in zip(rows, spans, strict=True)
        ]
        tokens = [
            token
            for row in rows
            for token in self.sequences[row][self.computed[row] : self.computed[row] + counts[row]]
        ]
        cos, sin = angles(torch.cat(spans), self.sizes.head_dim)
        starts = torch.tensor([0, *counts.values()]).cumsum(0)
        lengths = torch.tensor([self.computed[row] + counts[row] for row in rows])
        every = torch.arange(len(tokens))
        tables = self.tables[rows].contiguous()
        return StepInputs(torch.tensor(tokens), torch.cat(slots), cos, sin, tables, lengths, starts, every)

    def step(self, counts: dict[int, int]) -> None:
        logits = self.model.forward(self.inputs(counts), self.pools).clone()
        for row, part in zip(counts, logits.split(list(counts.values())), strict=True):
            self.logits[row] += list(part)
            self.computed[row] += counts[row]

    def run(self, chunk: int) -> list[torch.Tensor]:
        """All to their ends, `chunk` tokens of each in a step."""
        while any(missing := [len(tokens) - done for tokens, done in zip(self.sequences, self.computed, strict=True)]):
            self.step({row: min(count, chunk) for row, count in enumerate(missing) if count})
        return [torch.stack(rows) for rows in self.logits]


def prompts(lengths: Sequence[int], vocab: int) -> list[list[int]]:
    chance = random.Random(len(lengths))
    return [[chance.randrange(vocab) for _ in range(length)] for length in lengths]


def distance(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the error, relative to the logits'."""
    return float((logits.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def same_bits(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(left, right, strict=True))
