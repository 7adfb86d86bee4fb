"""What a model's config.json says, as frozen facts: every default is here, and every thing we cannot compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from common.errors import StartupError

T = TypeVar("T")

_UNSUPPORTED = (
    "attention_bias",
    "mlp_bias",
    "quantization_config",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention_chunk_size",
)
"""Names of a config.json that change what is computed, unless they are null, false or 0."""

_SLIDING, _FULL = "sliding_attention", "full_attention"
_DEFAULT_WINDOWS = {"MistralForCausalLM": 4096}
"""Architectures that have windows, and the one where config.json does not name any, as transformers has it."""


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Frequencies of long wavelengths are divided by `factor`, short ones are kept, those between are blended
    (Llama 3.1; wavelengths are compared with `original_max_len` tokens)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a decoder-only transformer. Sizes are in numbers, `max_model_len` in tokens.

    `windows` has for every layer how many keys a token sees, its own included: None is all, and so is what would be
    no fewer than `max_model_len`.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    windows: tuple[int | None, ...]
    tied_embeddings: bool
    dtype: str

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """The facts in a config.json. Raises `StartupError` that names what is missing, wrong or not supported."""
        _refuse_unsupported(config)
        architecture = _architecture(config)
        heads = _get(config, "num_attention_heads", int)
        hidden = _get(config, "hidden_size", int)
        rope = _get(config, "rope_parameters", dict, {})
        num_layers = _get(config, "num_hidden_layers", int)
        max_model_len = _get(config, "max_position_embeddings", int)
        spec = cls(
            architecture=architecture,
            vocab_size=_get(config, "vocab_size", int),
            hidden_size=hidden,
            intermediate_size=_get(config, "intermediate_size", int),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=_get(config, "num_key_value_heads", int, heads),
            head_dim=_get(config, "head_dim", int, hidden // max(heads, 1)),
            max_model_len=max_model_len,
            rms_norm_eps=_get(config, "rms_norm_eps", float, 1e-6),
            rope_theta=_get(rope, "rope_theta", float, _get(config, "rope_theta", float, 10_000.0)),
            rope_scaling=_rope_scaling(config),
            windows=_windows(config, architecture, num_layers, max_model_len),
            tied_embeddings=_get(config, "tie_word_embeddings", bool, False),
            dtype=_get(config, "dtype", str, _get(config, "torch_dtype", str, "float32")),
        )
        spec._check()
        return spec

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The facts of a model folder. Raises `StartupError`."""
        if folder.suffix == ".gguf" and folder.is_file():
            raise StartupError(f"{folder}: GGUF files are not read: --model must be a model folder with safetensors")
        path = folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise StartupError(f"{path} is missing: --model must be a model folder in Hugging Face layout") from None
        except (OSError, ValueError) as error:
            raise StartupError(f"{path} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise StartupError(f"{path} is not a JSON object")
        return cls.from_hf(config)

    def _check(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"):
            if getattr(self, name) < 1:
                raise StartupError(f"config.json: {name} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise StartupError(f"config.json: {self.num_heads} heads cannot share {self.num_kv_heads} key-value heads")
        if self.head_dim < 2 or self.head_dim % 2:
            raise StartupError(f"config.json: head_dim must be even, not {self.head_dim}")
        if self.max_model_len < 2:
            raise StartupError(f"config.json: max_position_embeddings must be at least 2, not {self.max_model_len}")


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise StartupError("config.json: architectures must name one architecture")
    return names[0]


def _get(config: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """A value of the right type; absent and null are the same."""
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        raise StartupError(f"config.json: {name} is missing")
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise StartupError(f"config.json: {name} must be of type {kind.__name__}, not {type(value).__name__}")
    return value


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Refuse what would otherwise be computed wrongly in silence."""
    for name in _UNSUPPORTED:
        if config.get(name):
            raise StartupError(f"config.json: {name} is not supported: serve a checkpoint without it")
    activation = _get(config, "hidden_act", str, "silu")
    if activation != "silu":
        raise StartupError(f"config.json: hidden_act {activation!r} is not supported, only 'silu'")


def _rope_scaling(config: Mapping[str, Any]) -> Llama3Scaling | None:
    """Newer checkpoints have `rope_parameters`, older ones `rope_scaling`."""
    scaling = _get(config, "rope_parameters", dict, {}) or _get(config, "rope_scaling", dict, {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise StartupError(f"config.json: rope type {kind!r} is not supported, only 'default' and 'llama3'")
    return Llama3Scaling(
        factor=_get(scaling, "factor", float),
        low_freq_factor=_get(scaling, "low_freq_factor", float),
        high_freq_factor=_get(scaling, "high_freq_factor", float),
        original_max_len=_get(scaling, "original_max_position_embeddings", int),
    )


def _windows(
    config: Mapping[str, Any], architecture: str, num_layers: int, max_model_len: int
) -> tuple[int | None, ...]:
    """`ModelSpec.windows`. Where `layer_types` is absent, all layers have the window."""
    window = _sliding_window(config, architecture)
    kinds = _get(config, "layer_types", list, [_SLIDING] * num_layers)
    if len(kinds) != num_layers:
        raise StartupError(f"config.json: layer_types has {len(kinds)} entries for {num_layers} layers")
    for kind in kinds:
        if kind not in (_SLIDING, _FULL):
            raise StartupError(f"config.json: layer type {kind!r} is not supported, only {_SLIDING!r} and {_FULL!r}")
    if window is None or window >= max_model_len or _SLIDING not in kinds:
        return (None,) * num_layers
    if architecture not in _DEFAULT_WINDOWS:  # of a Llama, transformers cuts the cache and leaves the mask: no answer
        raise StartupError("config.json: sliding_window is not supported for this architecture: set it to null")
    if config.get("layer_types") is None:
        for name in ("max_window_layers", "sliding_window_pattern"):
            if config.get(name) is not None:
                raise StartupError(f"config.json: {name} is not supported: name each layer's kind in layer_types")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _sliding_window(config: Mapping[str, Any], architecture: str) -> int | None:
    """The window of those layers that have one; null is none."""
    window = config.get("sliding_window", _DEFAULT_WINDOWS.get(architecture))
    if window is None or not _get(config, "use_sliding_window", bool, True):
        return None
    if type(window) is not int or window < 1:
        raise StartupError(f"config.json: sliding_window must be null or a number from 1 on, not {window!r}")
    return window
