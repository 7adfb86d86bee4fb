"""Reading config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from common.errors import StartupError
from executor_svc.models.rope import inverse_frequencies
from executor_svc.models.spec import ModelSpec
from tests.executor.conftest import MakeEngine

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def test_defaults() -> None:
    spec = ModelSpec.from_hf(LLAMA)
    assert (spec.num_kv_heads, spec.head_dim, spec.rms_norm_eps, spec.rope_theta) == (4, 16, 1e-6, 10_000.0)
    assert (spec.rope_scaling, spec.tied_embeddings, spec.dtype) == (None, False, "float32")


def test_old_and_new_names() -> None:
    old = ModelSpec.from_hf(LLAMA | {"torch_dtype": "bfloat16", "rope_theta": 5e5, "rope_scaling": LLAMA3})
    new = ModelSpec.from_hf(LLAMA | {"dtype": "bfloat16", "rope_parameters": {"rope_theta": 500_000} | LLAMA3})
    assert old == new
    assert new.rope_theta == 5e5 and new.dtype == "bfloat16" and new.rope_scaling is not None


@pytest.mark.parametrize("scaling", [None, LLAMA3])
def test_frequencies_are_those_of_transformers(scaling: dict[str, Any] | None) -> None:
    rope = {"rope_theta": 10_000.0, "rope_type": "default"} | (scaling or {})
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, head_dim=32, max_position_embeddings=1024, rope_parameters=rope
    )
    expected = LlamaRotaryEmbedding(config).inv_freq
    spec = ModelSpec.from_hf(LLAMA | {"head_dim": 32, "rope_parameters": rope})
    torch.testing.assert_close(inverse_frequencies(spec), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be of type int, not str"),
        ({"num_attention_heads": True}, "num_attention_heads must be of type int, not bool"),
        ({"num_hidden_layers": 0}, "num_layers must be at least 1"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"max_position_embeddings": 1}, "max_position_embeddings must be at least 2"),
        ({"architectures": []}, "architectures must name one"),
        ({"architectures": None}, "architectures must name one"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope type 'linear' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
        ({"rope_scaling": [2.0]}, "rope_scaling must be of type dict, not list"),
        ({"rope_parameters": "default"}, "rope_parameters must be of type dict, not str"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        ModelSpec.from_hf(LLAMA | change)


@pytest.mark.parametrize("change", [{}, {"use_sliding_window": True}, {"use_sliding_window": None}])
def test_F47_window_is_refused_and_never_computed_as_full_attention(change: dict[str, Any]) -> None:
    with pytest.raises(StartupError, match="sliding_window is not supported: serve a checkpoint with full attention"):
        ModelSpec.from_hf(LLAMA | {"sliding_window": 24} | change)


@pytest.mark.parametrize(
    "off", [{"sliding_window": None}, {"sliding_window": 24, "use_sliding_window": False}, {"use_sliding_window": True}]
)
def test_F47_window_that_is_off_is_full_attention(off: dict[str, Any]) -> None:
    assert ModelSpec.from_hf(LLAMA | off) == ModelSpec.from_hf(LLAMA)


@pytest.mark.parametrize("harmless", [{"attention_bias": False}, {"pretraining_tp": 1}])
def test_what_changes_nothing_is_accepted(harmless: dict[str, Any]) -> None:
    assert ModelSpec.from_hf(LLAMA | harmless) == ModelSpec.from_hf(LLAMA)


def test_an_unknown_architecture_is_named_with_the_known_ones(
    make_engine: MakeEngine, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").symlink_to(tiny / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"architectures": ["OtherForCausalLM"]}))
    with pytest.raises(StartupError, match=r"OtherForCausalLM is not supported.*LlamaForCausalLM, MistralForCausalLM"):
        make_engine(tmp_path)


def test_F55_code_in_the_folder_is_not_run(make_engine: MakeEngine, tiny: Path, tmp_path: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    config |= {"architectures": ["Custom"], "auto_map": {"AutoModelForCausalLM": "modeling.Custom"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(tiny / "model.safetensors")
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')")
    with pytest.raises(StartupError, match="Custom is not supported"):
        make_engine(tmp_path)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_config_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, errors="surrogateescape")
    with pytest.raises(StartupError, match=r"config\.json"):
        ModelSpec.read(tmp_path)


def test_a_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"config\.json is missing"):
        ModelSpec.read(tmp_path)
