"""A GGUF file as a model folder: `python -m citybus.models.convert GGUF FOLDER`.

A process of its own, so that the memory it takes and the libraries it needs (the `convert` extra) stay out of
everything else. It ends by asking the model a question: weights that were read wrongly cannot answer it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def convert(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` into `folder`, its weights unpacked to bfloat16. Raises `ValueError` if it is wrong."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output: Any = model.generate(**prompt, do_sample=False, max_new_tokens=16)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    if answer != ANSWER:
        raise ValueError(f"the converted model answers {answer!r} to {QUESTION!r}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
