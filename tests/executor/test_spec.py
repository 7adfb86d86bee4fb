"""Reading config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from common.errors import StartupError
from executor_svc.models.rope import Rotations, inverse_frequencies
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
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
SLIDING, FULL = "sliding_attention", "full_attention"
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


def test_rotations_looked_up_are_those_computed_to_the_last_bit() -> None:
    spec = ModelSpec.from_hf(LLAMA | {"head_dim": 80})
    rotations = Rotations(spec)
    for positions in ([0], [2, 1, 0], [500, 3, 499], [7]):
        angles = torch.tensor(positions)[:, None].float() * inverse_frequencies(spec)
        cos, sin = rotations.at(torch.tensor(positions), max(positions) + 1)
        assert torch.equal(cos, angles.cos()) and torch.equal(sin, angles.sin())


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
        ({"sliding_window": 24}, "sliding_window is not supported for this architecture"),
        ({"sliding_window": 24, "layer_types": [FULL, SLIDING]}, "sliding_window is not supported"),
        ({"layer_types": [FULL, "chunked_attention"]}, "layer type 'chunked_attention' is not supported"),
        ({"layer_types": [FULL]}, "layer_types has 1 entries for 2 layers"),
        ({"layer_types": FULL}, "layer_types must be of type list, not str"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is not supported"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is not supported"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size is not supported"),
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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sliding_window": 0}, "must be null or a number from 1 on, not 0"),
        ({"sliding_window": True}, "must be null or a number from 1 on, not True"),
        ({"sliding_window": 24.0}, "must be null or a number from 1 on, not 24.0"),
        ({"sliding_window": 24, "use_sliding_window": 1}, "use_sliding_window must be of type bool, not int"),
        ({"sliding_window": 24, "max_window_layers": 1}, "max_window_layers is not supported: name each layer's kind"),
        ({"sliding_window": 24, "sliding_window_pattern": 2}, "sliding_window_pattern is not supported"),
    ],
)
def test_a_window_that_cannot_be_computed_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        ModelSpec.from_hf(MISTRAL | change)


@pytest.mark.parametrize(
    ("change", "windows"),
    [
        ({"sliding_window": 24}, (24, 24)),
        ({"sliding_window": 511}, (511, 511)),
        ({"sliding_window": 512}, (None, None)),
        ({"sliding_window": None}, (None, None)),
        ({"sliding_window": 24, "use_sliding_window": False}, (None, None)),
        ({"sliding_window": 24, "use_sliding_window": True}, (24, 24)),
        ({"sliding_window": 24, "layer_types": [SLIDING, FULL]}, (24, None)),
        ({"sliding_window": 24, "layer_types": [SLIDING, FULL], "max_window_layers": 1}, (24, None)),
        ({"sliding_window": 24, "layer_types": None}, (24, 24)),
        ({"sliding_window": None, "layer_types": [SLIDING, FULL]}, (None, None)),
        ({"max_position_embeddings": 8192}, (4096, 4096)),
        ({"max_position_embeddings": 8192, "sliding_window": None}, (None, None)),
    ],
)
def test_windows(change: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert ModelSpec.from_hf(MISTRAL | change).windows == windows


def test_a_mistral_that_names_no_window_has_that_of_transformers() -> None:
    assert ModelSpec.from_hf(MISTRAL | {"max_position_embeddings": 8192}).windows[0] == MistralConfig().sliding_window


@pytest.mark.parametrize(
    "harmless",
    [
        {"sliding_window": None},
        {"sliding_window": 24, "layer_types": [FULL, FULL]},
        {"attention_bias": False},
        {"pretraining_tp": 1},
        {"attn_logit_softcapping": None},
    ],
)
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
