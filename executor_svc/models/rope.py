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


def _scaled(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_max_len / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
