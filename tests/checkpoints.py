"""Model folders in Hugging Face layout for tests: TINY (live random weights) and CHAIN (scripted output).

Both share one byte-level BPE tokenizer whose first 256 token ids are the bytes themselves, so that
`list(text.encode())` is a valid prompt and a script can be written with `ord`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIALS = {"<|bos|>": BOS, "<|eos|>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("an", "d"), ("Ġ", "t"), ("Ġ", "a")]
FIRST_MERGE = 260
MERGED = {left + right: FIRST_MERGE + rank for rank, (left, right) in enumerate(MERGES)}
VOCAB_SIZE = 272

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def write_tiny(
    path: Path,
    *,
    num_layers: int = 2,
    vocab_size: int = VOCAB_SIZE,
    max_model_len: int = 512,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
    tie: bool = False,
    **options: Any,
) -> Path:
    """A Llama with random weights: 4 heads, 2 KV heads, hidden size 64. `options` are those of `write_folder`.

    Attention is sharp and as loud as the embedding, so a changed key or value changes the greedy tokens, and greedy
    output wanders instead of repeating one token.
    """
    config = _llama_config(hidden=64, intermediate=128, num_layers=num_layers, vocab_size=vocab_size, tie=tie)
    config["max_position_embeddings"] = max_model_len
    generator = torch.Generator().manual_seed(seed)
    gains = {"q_proj": 2.0, "k_proj": 2.0, "v_proj": 1.5, "o_proj": 2.0, "embed_tokens": 8.0 if not tie else 2.0}
    tensors = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) * gains.get(name.split(".")[-2], 1.5) / shape[1] ** 0.5
        for name, shape in tensor_shapes(config).items()
    }
    return write_folder(path, config, tensors, dtype=dtype, shards=shards, **options)


def write_windowed(path: Path, *, window: int | None, layer_types: Sequence[str] | None = None, **options: Any) -> Path:
    """The weights of `write_tiny`, whose `options` it takes, as a Mistral with a sliding window: in every layer, or in
    those that `layer_types` says."""
    write_tiny(path, **options)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    if layer_types is not None:
        config["layer_types"] = list(layer_types)
    write_json(path / "config.json", config)
    return path


def write_chain(
    path: Path,
    script: Mapping[int, int],
    *,
    default: int = EOS,
    max_model_len: int = 512,
    dtype: str = "float32",
    shards: int = 1,
    **options: Any,
) -> Path:
    """A Llama whose next token is `script[last token]`, or `default` for a token that the script does not name.

    The scripted token's logit is more than 100 above all others: sampling at any usual temperature follows it too.
    `options` are those of `write_folder`.
    """
    config = _llama_config(hidden=VOCAB_SIZE, intermediate=32, num_layers=1, vocab_size=VOCAB_SIZE, tie=False)
    config["max_position_embeddings"] = max_model_len
    shapes = tensor_shapes(config)
    tensors = {name: torch.ones(shape) if len(shape) == 1 else torch.zeros(shape) for name, shape in shapes.items()}
    tensors["model.embed_tokens.weight"] = torch.eye(VOCAB_SIZE)
    for token in range(VOCAB_SIZE):
        tensors["lm_head.weight"][script.get(token, default), token] = 8.0
    return write_folder(path, config, tensors, dtype=dtype, shards=shards, **options)


def follow(*token_ids: int) -> dict[int, int]:
    """The script in which each of `token_ids` is followed by the next one."""
    return dict(itertools.pairwise(token_ids))


def write_folder(
    path: Path,
    config: dict[str, Any],
    tensors: Mapping[str, torch.Tensor],
    *,
    dtype: str = "float32",
    shards: int = 1,
    eos: int | None = EOS,
    generation_eos: int | Sequence[int] | None = EOS,
    chat_template: str | None = CHATML,
    bos: bool = True,
    eos_special: bool = True,
) -> Path:
    """Write a whole model folder; returns `path`.

    `generation_eos` None leaves generation_config.json out. Without `bos` the tokenizer has no BOS token; without
    `eos_special` its EOS token is not flagged special.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "config.json", {**config, "torch_dtype": dtype, "bos_token_id": BOS, "eos_token_id": eos})
    if generation_eos is not None:
        write_json(path / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": generation_eos})
    _write_tokenizer(path, chat_template, bos, eos_special)
    write_tensors(path, {name: tensor.to(DTYPES[dtype]) for name, tensor in tensors.items()}, shards)
    return path


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], shards: int = 1) -> None:
    """Write safetensors: model.safetensors, or `shards` files dealt in turn and their index."""
    if shards == 1:
        save_file(dict(tensors), path / "model.safetensors")
        return
    files = {name: f"model-{rank % shards + 1:05}-of-{shards:05}.safetensors" for rank, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensor for name, tensor in tensors.items() if files[name] == file}, path / file)
    write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": files})


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `path`."""
    path.write_text(json.dumps(content, indent=2))


def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape of a Llama checkpoint with this config."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (queries, hidden),
            f"{prefix}self_attn.k_proj.weight": (keys, hidden),
            f"{prefix}self_attn.v_proj.weight": (keys, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}mlp.up_proj.weight": (inner, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, inner),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def _llama_config(*, hidden: int, intermediate: int, num_layers: int, vocab_size: int, tie: bool) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tie,
    }


def _write_tokenizer(path: Path, chat_template: str | None, bos: bool, eos_special: bool) -> None:
    vocabulary = {character: byte for byte, character in _byte_alphabet().items()} | MERGED
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary | SPECIALS, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(text, special=eos_special or text != "<|eos|>") for text in SPECIALS])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", BOS)]
        )
    tokenizer.save(str(path / "tokenizer.json"))
    facts: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|eos|>"}
    if bos:
        facts["bos_token"] = "<|bos|>"
    if chat_template is not None:
        facts["chat_template"] = chat_template
    write_json(path / "tokenizer_config.json", facts)


def _byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + rank) for rank, byte in enumerate(others)}
