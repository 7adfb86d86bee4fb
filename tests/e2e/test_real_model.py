"""The default model in float32: what it says does not depend on the company, and is what its weights say.

`pytest tests/e2e/test_real_model.py --prompts mt_bench_question.jsonl` asks the questions of a file instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from citybus import ChatMessage, Client
from tests.e2e import prompts
from tests.harness import Bus, running_bus

MAX_TOKENS = 10


@pytest.fixture(scope="module")
def real_bus(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    flags = ("--dtype", "float32", "--kv-cache-memory", "512", "--max-model-len", "2048")
    with running_bus(default_model, tmp_path_factory.mktemp("real"), executor=flags) as bus:
        yield bus


@pytest.fixture(scope="module")
def conversations(request: pytest.FixtureRequest) -> list[list[ChatMessage]]:
    path = request.config.getoption("--prompts")
    return prompts.of_file(Path(path)) if path else prompts.built_in()


def answer(client: Client, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
    return client.complete(messages=messages, temperature=0.0, max_tokens=MAX_TOKENS).token_ids


@pytest.fixture(scope="module")
def together(real_bus: Bus, conversations: list[list[ChatMessage]]) -> list[tuple[int, ...]]:
    """The answers to all conversations, asked at the same time."""
    with Client(real_bus.address) as client, ThreadPoolExecutor(len(conversations)) as pool:
        answers = list(pool.map(lambda messages: answer(client, messages), conversations))
    most = max(len(plan["new"]) + len(plan["scheduled"]) for plan in real_bus.plans())
    assert most > len(conversations) // 2, "they were to run together"
    return answers


@pytest.mark.timeout(900)
def test_sixty_four_at_once_say_what_each_says_alone(
    real_bus: Bus, conversations: list[list[ChatMessage]], together: list[tuple[int, ...]]
) -> None:
    with Client(real_bus.address) as client:
        for index, (messages, expected) in enumerate(zip(conversations, together, strict=True)):
            alone = client.complete(
                messages=messages, temperature=0.0, max_tokens=MAX_TOKENS, cache_salt=f"alone-{index}"
            )
            assert alone.token_ids == expected, f"conversation {index}"
            assert alone.finish.usage.cached_tokens == 0
    assert len(set(together)) > len(together) // 2
    real_bus.wait_idle()


@pytest.mark.timeout(900)
def test_the_answers_are_those_of_the_reference_implementation(
    default_model: Path, conversations: list[list[ChatMessage]], together: list[tuple[int, ...]]
) -> None:
    """Token after token is the likeliest one, given all before it, for transformers in float32."""
    tokenizer, model = reference_implementation(default_model)
    for index, (messages, tokens) in enumerate(zip(conversations, together, strict=True)):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text, add_special_tokens=False)
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
        assert tuple(logits.argmax(-1).tolist()) == tokens, f"conversation {index}"


def reference_implementation(folder: Path) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return AutoTokenizer.from_pretrained(folder), model.eval()
