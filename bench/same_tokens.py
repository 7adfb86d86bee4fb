"""Does batching change what the model says? Sends prompts all at once, then one by one, and compares the tokens.

Run a server of the same model first, in float32:
    citybus serve --dtype float32
    python -m bench.same_tokens --model "$(citybus model path default)"
With --model, the answers are also held against transformers' greedy output of the same weights in float32. No answer
is helped by the prefix cache of another run: every run has a cache salt of its own, and so has every lone prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.prompts import BUILT_IN, read_prompts
from citybus import AsyncClient
from citybus.requests import ChatMessage

Tokens = tuple[int, ...]


async def answers_together(address: str, prompts: Sequence[str], max_tokens: int) -> list[Tokens]:
    """The greedy answers to prompts sent all at once."""
    salt = secrets.token_hex(8)
    async with AsyncClient(address) as client:
        await client.wait_ready()
        return await asyncio.gather(*(_answer(client, prompt, max_tokens, salt) for prompt in prompts))


async def answers_alone(address: str, prompts: Sequence[str], max_tokens: int) -> list[Tokens]:
    """The greedy answers to prompts sent one by one, each to a cold cache."""
    async with AsyncClient(address) as client:
        await client.wait_ready()
        return [await _answer(client, prompt, max_tokens, secrets.token_hex(8)) for prompt in prompts]


async def _answer(client: AsyncClient, prompt: str, max_tokens: int, salt: str) -> Tokens:
    completion = await client.complete(
        messages=_conversation(prompt), temperature=0.0, max_tokens=max_tokens, cache_salt=salt
    )
    return completion.token_ids


def _conversation(prompt: str) -> list[ChatMessage]:
    return [{"role": "user", "content": prompt}]


def differences_from_transformers(
    model: Path, prompts: Sequence[str], answers: Sequence[Tokens], max_tokens: int
) -> list[str]:
    """What in the answers is not transformers' greedy output in float32, one line each, at most one an answer.

    One forward pass over a prompt and its answer shows that every token is the likeliest one after all before it,
    which is the same as generating it, and that the answer ends at an end token or where it has to.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ends = reference.generation_config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    found = []
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        text = tokenizer.apply_chat_template(_conversation(prompt), add_generation_prompt=True, tokenize=False)
        given = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.inference_mode():
            logits = reference(torch.tensor([[*given, *answer[:-1]]])).logits[0, len(given) - 1 :]
        gaps = logits.max(-1).values - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        off = [place for place, token in enumerate(logits.argmax(-1).tolist()) if token != answer[place]]
        if off:
            found.append(f"answer {index}, token {off[0]}: its logit is {gaps[off[0]]:.2g} below the largest")
        elif ends.intersection(answer[:-1]) or (answer[-1] not in ends and len(answer) < max_tokens):
            found.append(f"answer {index} ends at another place")
    return found


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
    together = asyncio.run(answers_together(options.address, prompts, options.max_tokens))
    between = time.monotonic()
    alone = asyncio.run(answers_alone(options.address, prompts, options.max_tokens))
    report: dict[str, object] = {
        "prompts": len(prompts),
        "tokens": sum(map(len, together)),
        "seconds together": round(between - started, 1),
        "seconds alone": round(time.monotonic() - between, 1),
        "together == alone": count_equal(together, alone),
    }
    differences: list[str] = []
    if options.model:
        differences = differences_from_transformers(options.model, prompts, together, options.max_tokens)
        report |= {"together == transformers": len(prompts) - len(differences), "differences": differences}
    print(json.dumps(report))
    return 0 if together == alone and not differences else 1


if __name__ == "__main__":
    raise SystemExit(main())
