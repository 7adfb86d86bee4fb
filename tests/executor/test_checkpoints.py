"""The model folders that every other test stands on: transformers must read them as intended."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.checkpoints import BOS, EOS, IM_END, IM_START, MERGED, VOCAB_SIZE, follow, write_chain, write_tiny


def greedy(model: LlamaForCausalLM, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def load(path: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)


@pytest.mark.parametrize("tie", [False, True])
def test_tiny_wanders_and_listens_to_its_whole_prompt(tmp_path: Path, tie: bool) -> None:
    model = load(write_tiny(tmp_path, tie=tie))
    prompts = [[7, *range(40, 60), last] for last in range(100, 104)]
    outputs = [greedy(model, prompt, 40) for prompt in prompts]
    assert min(len(set(output)) for output in outputs) >= 20
    changed = [greedy(model, [8, *prompt[1:]], 40) for prompt in prompts]
    assert all(first != second for first, second in zip(outputs, changed, strict=True))


def test_tiny_in_shards_is_the_same_model(tmp_path: Path) -> None:
    whole, sharded = load(write_tiny(tmp_path / "one")), load(write_tiny(tmp_path / "three", shards=3))
    for (name, tensor), (_, other) in zip(whole.named_parameters(), sharded.named_parameters(), strict=True):
        assert torch.equal(tensor, other), name


def test_chain_says_its_script(tmp_path: Path) -> None:
    script = follow(*b"?abc", IM_START, 200)
    model = load(write_chain(tmp_path, script))
    assert greedy(model, [3, 9, ord("?")], 6) == [*b"abc", IM_START, 200, EOS]


def test_chain_keeps_to_its_script_at_temperature_five(tmp_path: Path) -> None:
    model = load(write_chain(tmp_path, follow(*b"?a")))
    with torch.inference_mode():
        logits = model(torch.tensor([[ord("?")]])).logits[0, -1] / 5
    assert logits.softmax(-1)[ord("a")] > 0.999999


def test_tokenizer_ids_are_bytes_merges_and_specials(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(write_chain(tmp_path, {}) / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 268 <= VOCAB_SIZE
    assert tokenizer.encode("xyz\né", add_special_tokens=False).ids == list("xyz\né".encode())
    assert tokenizer.encode("the").ids == [BOS, MERGED["the"]]
    assert tokenizer.encode("<|im_start|>a<|im_end|>", add_special_tokens=False).ids == [IM_START, ord("a"), IM_END]
    assert tokenizer.decode(list("smörgås 🚌".encode())) == "smörgås 🚌"


def test_tokenizer_options(tmp_path: Path) -> None:
    folder = write_chain(tmp_path, {}, bos=False, eos_special=False, generation_eos=None, chat_template=None)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.bos_token is None
    assert tokenizer("ab").input_ids == list(b"ab")
    assert tokenizer.chat_template is None
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert plain.decode([ord("a"), EOS, IM_END], skip_special_tokens=True) == "a<|eos|>"
    assert not (folder / "generation_config.json").exists()


def test_chat_template_renders(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(write_chain(tmp_path, {}))
    text = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
