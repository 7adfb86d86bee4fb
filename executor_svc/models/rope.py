"""Angles of the rotary position embedding."""

from __future__ import annotations

import math

import torch

from executor_svc.models.spec import Llama3Scaling, ModelSpec


def inverse_frequencies(spec: ModelSpec) -> torch.Tensor:
    """Radians per token of each pair of dimensions, float32 [head_dim / 2]."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / spec.rope_theta**exponents
    return frequencies if spec.rope_scaling is None else _scaled(frequencies, spec.rope_scaling)


class Rotations:
    """Cosines and sines of the positions of sequences, looked up: a step of decodes would take longer to compute its
    few. The tables are as long as a sequence has been, twice that at most, and no longer than the model's context."""

    def __init__(self, spec: ModelSpec) -> None:
        self._frequencies = inverse_frequencies(spec)
        self._longest = spec.max_model_len
        self._cos = self._sin = torch.empty(0, len(self._frequencies))

    def at(self, positions: torch.Tensor, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Float32 [N, head_dim / 2] each, of `positions` int64 [N], all before `end`."""
        if end > len(self._cos):
            angles = torch.arange(min(2 * end, self._longest))[:, None].float() * self._frequencies
            self._cos, self._sin = angles.cos(), angles.sin()
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def _scaled(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_max_len / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
