"""Model folders with the text side only, without torch: small tokenizers of the two families in use.

`BYTE_LEVEL` is GPT-2's kind: the first 256 ids are the bytes themselves. `SENTENCEPIECE` is Llama 2's: a mark for the
space, one token a byte for what the vocabulary lacks, and merges that can build "</s>" from ordinary pieces.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

BOS, EOS, IM_START, IM_END, THINK = 256, 257, 258, 259, 260
CONTROL = {"<|bos|>": BOS, "<|eos|>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(*, bos: bool = True, eos_special: bool = True, **flags: bool) -> Tokenizer:
    """`flags` are those of the control tokens (lstrip, rstrip, ...). "<think>" is added too, but not special."""
    alphabet = {character: byte for byte, character in byte_alphabet().items()}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ċ", "Ċ"), ("Ġ", "Ġ")]
    vocabulary = alphabet | CONTROL | {"<think>": THINK}
    vocabulary |= {left + right: THINK + 1 + rank for rank, (left, right) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=eos_special or text != "<|eos|>", **flags) for text in CONTROL]
    tokenizer.add_tokens([*specials, AddedToken("<think>", special=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", pair="$A $B", special_tokens=[("<|bos|>", BOS)]
        )
    return tokenizer


def sentencepiece(*, legacy: bool = True, strip: bool = True, **flags: bool) -> Tokenizer:
    """`legacy` puts a space before every piece of text between control tokens, else only before the first."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    pieces = [
        "▁",
        *"abcdefghijklmnopqrstuvwxyz/<>.,!?",
        "</",
        "s>",
        "</s>",
        "▁t",
        "he",
        "▁the",
        "▁▁",
        "lo",
        "hel",
        "▁▁▁▁",
    ]
    merges = [("<", "/"), ("s", ">"), ("</", "s>"), ("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "▁"), ("l", "o")]
    merges += [("he", "l"), ("▁▁", "▁▁")]
    for piece in pieces:
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, **flags) for text in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="$A $B", special_tokens=[("<s>", 1)])
    return tokenizer


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character that stands for it in byte-level BPE (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + rank) for rank, byte in enumerate(others)}


def write_folder(
    path: Path,
    tokenizer: Tokenizer | None = None,
    *,
    eos: int | Sequence[int] | None = EOS,
    generation_eos: int | Sequence[int] | None = None,
    chat_template: Any = CHATML,
    **tokenizer_config: Any,
) -> Path:
    """Write a folder; returns `path`. `generation_eos` None: no generation_config.json."""
    path.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level()).save(str(path / "tokenizer.json"))
    facts = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": chat_template} | tokenizer_config
    write_json(path / "tokenizer_config.json", {name: value for name, value in facts.items() if value is not None})
    write_json(path / "config.json", {"eos_token_id": eos})
    if generation_eos is not None:
        write_json(path / "generation_config.json", {"eos_token_id": generation_eos})
    return path


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))
