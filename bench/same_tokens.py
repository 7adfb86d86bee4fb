"""Does batching change what the model says? Sends prompts one by one, then all at once, and compares the tokens.

Run a server of the same model first, with its prefix cache cold and in float32:
    citybus serve --dtype float32
    python -m bench.same_tokens --model "$(citybus model path default)"
With --model, transformers' greedy output of the same weights in float32 is compared too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.prompts import BUILT_IN, read_prompts
from citybus import AsyncClient
from citybus.messages import ChatMessage

Tokens = tuple[int, ...]


async def answer(client: AsyncClient, prompt: str, max_tokens: int) -> Tokens:
    """The greedy answer's tokens."""
    messages: list[ChatMessage] = [{"role": "user", "content": prompt}]
    completion = await client.complete(messages=messages, temperature=0.0, max_tokens=max_tokens)
    return completion.token_ids


async def alone_and_together(address: str, prompts: Sequence[str], max_tokens: int) -> tuple[list[Tokens], ...]:
    """The answers to prompts sent all at once on a cold cache, then one by one."""
    async with AsyncClient(address) as client:
        await client.wait_ready()
        together = await asyncio.gather(*(answer(client, prompt, max_tokens) for prompt in prompts))
        alone = [await answer(client, prompt, max_tokens) for prompt in prompts]
    return list(together), alone


def transformers_answers(model: Path, prompts: Sequence[str], max_tokens: int) -> list[Tokens]:
    """What transformers answers, greedily, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference.eval()
    answers = []
    for prompt in prompts:
        inputs: Any = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = reference.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        answers.append(tuple(output[0, inputs["input_ids"].shape[1] :].tolist()))
    return answers


def count_equal(left: Sequence[Tokens], right: Sequence[Tokens]) -> int:
    """How many answers are the same, token for token."""
    return sum(a == b for a, b in zip(left, right, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:50051", help="the server (default %(default)s)")
    parser.add_argument("--prompts", type=Path, help="JSON-lines file of prompts (default: a built-in set of 64)")
    parser.add_argument("--limit", type=int, default=64, help="most prompts (default %(default)s)")
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens of an answer (default %(default)s)")
    parser.add_argument("--model", type=Path, help="model folder, to compare with transformers")
    options = parser.parse_args()
    prompts = (read_prompts(options.prompts) if options.prompts else BUILT_IN)[: options.limit]
    started = time.monotonic()
    together, alone = asyncio.run(alone_and_together(options.address, prompts, options.max_tokens))
    report: dict[str, object] = {
        "prompts": len(prompts),
        "tokens": sum(map(len, together)),
        "seconds": round(time.monotonic() - started, 1),
        "together == alone": count_equal(together, alone),
    }
    equal = together == alone
    if options.model:
        reference = transformers_answers(options.model, prompts, options.max_tokens)
        report["together == transformers"] = count_equal(together, reference)
        equal = equal and together == reference
    print(json.dumps(report))
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
