"""What transformers says of models with a sliding window: computed without a cache, with a mask of exactly W keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import MinistralForCausalLM, MistralForCausalLM

W = 24
"""Not a multiple of the block size."""

ALTERNATING = ("sliding_attention", "full_attention")


@torch.inference_mode()
def greedy(folder: Path, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """`count` tokens for each prompt. Transformers' Mistral has one window in all layers; its Ministral is the same
    but for `layer_types`."""
    named = "layer_types" in json.loads((folder / "config.json").read_text())
    model: Any = (MinistralForCausalLM if named else MistralForCausalLM).from_pretrained(folder, dtype=torch.float32)
    outputs = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        outputs.append(ids[len(prompt) :])
    return outputs
