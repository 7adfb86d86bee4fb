"""Runs a peer in its own virtual environment: `python -m bench.peers.worker NAME MODEL`, driven by `bench.peers.peer`.

Reads a JSON object a line, {"prompts": [[token ids]], "output_tokens": [counts]}, answers all prompts at once with
exactly so many greedy tokens each, and writes {"seconds": ..., "output_tokens": ...}. First of all it writes
{"ready": true}.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

SEATS = 64
"""Most sequences in a step, for every peer."""
CONTEXT = 1024
"""Most tokens of a sequence, where a peer sets memory aside for it."""
STEP_TOKENS = 512
"""Most tokens in a step."""

_PAGE = 64
"""Tokens of a block of transformers' cache."""

Prompts = list[list[int]]
Answer = Callable[[Prompts, list[int]], int]
"""Prompts and numbers of tokens in, number of tokens generated out."""


def transformers_peer(model: str) -> Answer:
    """transformers' continuous batching, in a pool as large as the seats need: a larger one makes it slower."""
    transformers: Any = importlib.import_module("transformers")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation="sdpa")
    config = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=1)
    batching = transformers.ContinuousBatchingConfig(
        num_blocks=SEATS * CONTEXT // 2 // _PAGE,
        page_size=_PAGE,
        max_batch_tokens=STEP_TOKENS,
        allow_block_sharing=False,
    )
    manager = loaded.init_continuous_batching(generation_config=config, continuous_batching_config=batching)
    manager.start()

    def answer(prompts: Prompts, output_tokens: list[int]) -> int:
        for prompt, count in zip(prompts, output_tokens, strict=True):
            manager.add_request(prompt, max_new_tokens=count, eos_token_id=-1)
        done: list[int] = []
        while len(done) < len(prompts):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                done.append(len(result.generated_tokens))
        return sum(done)

    return answer


def vllm_peer(model: str) -> Answer:
    """vLLM's CPU build."""
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=model, dtype="auto", enable_prefix_caching=False, max_model_len=2 * CONTEXT, max_num_seqs=SEATS
    )

    def answer(prompts: Prompts, output_tokens: list[int]) -> int:
        sampling = [vllm.SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in output_tokens]
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        made = engine.generate(asked, sampling, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in made)

    return answer


def openvino_peer(model: str) -> Answer:
    """OpenVINO GenAI's continuous batching."""
    numpy: Any = importlib.import_module("numpy")
    openvino: Any = importlib.import_module("openvino")
    genai: Any = importlib.import_module("openvino_genai")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_seqs = SEATS
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU")

    def config(count: int) -> Any:
        made = genai.GenerationConfig()
        made.max_new_tokens, made.ignore_eos, made.do_sample = count, True, False
        return made

    def answer(prompts: Prompts, output_tokens: list[int]) -> int:
        tensors = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
        made = pipeline.generate(tensors, [config(count) for count in output_tokens])
        return sum(len(one.m_generation_ids[0]) for one in made)

    return answer


def llama_cpp_peer(model: str) -> Answer:
    """llama.cpp's own server, a slot for each seat, over HTTP on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    threads = str(len(os.sched_getaffinity(0)))
    sizes = ("-np", str(SEATS), "-c", str(SEATS * CONTEXT), "-ub", str(STEP_TOKENS), "-t", threads, "-tb", threads)
    subprocess.Popen([os.environ["LLAMA_SERVER"], "-m", model, "--port", port, *sizes], stdin=subprocess.DEVNULL)
    while not _is_healthy(port):
        time.sleep(0.05)

    def one(prompt: list[int], count: int) -> int:
        asked = {"prompt": prompt, "n_predict": count, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=600) as response:
            return int(json.load(response)["tokens_predicted"])

    def answer(prompts: Prompts, output_tokens: list[int]) -> int:
        with ThreadPoolExecutor(len(prompts)) as clients:
            return sum(clients.map(one, prompts, output_tokens))

    return answer


def _is_healthy(port: str) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


PEERS = {
    "llama.cpp": llama_cpp_peer,
    "openvino": openvino_peer,
    "transformers": transformers_peer,
    "vllm": vllm_peer,
}


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
