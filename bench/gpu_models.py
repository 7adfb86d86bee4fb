"""Tokens a second of whole models with random weights: our engine, and transformers' continuous batching."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from prometheus_client import CollectorRegistry
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from common.metrics import ExecutorMetrics
from common.model_identity import ModelIdentity
from common.step import ExecutorInfo, NewSequence, Sampling, ScheduledSequence, StepPlan, StepResult
from common.step_executor import PendingStep
from executor_svc.constraints import Constraints
from executor_svc.cuda_graphs import GraphedModel, capture_cuda
from executor_svc.engine import Engine, EngineLimits
from executor_svc.kv_pool import KvPool
from executor_svc.model_runner import ModelRunner
from executor_svc.models.llama import Llama
from executor_svc.models.registry import Model
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.triton.record import TRITON

BLOCK_SIZE = 16
GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that come at once, with prompts and answers of one length each, in tokens."""

    requests: int
    prompt: int
    answer: int


def config(name: str) -> LlamaConfig:
    """Of a Llama of 1B or 8B parameters, or of a tiny one."""
    hidden, inner, layers, heads, kv_heads, vocab = {
        "1B": (2048, 8192, 16, 32, 8, 128256),
        "8B": (4096, 14336, 32, 32, 8, 128256),
        "tiny": (64, 128, 1, 4, 2, 272),
    }[name]
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
    )


class StateWeights(Checkpoint):
    """The tensors of a model of transformers, in place of those of a folder."""

    def __init__(self, model: Any) -> None:
        self._state = model.state_dict()
        self.taken_bytes = 0

    def take(self, name: str, *shape: int) -> torch.Tensor:
        tensor: torch.Tensor = self._state[name]
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {list(tensor.shape)}, not {list(shape)}")
        self.taken_bytes += tensor.nbytes
        return tensor


def compare(name: str, load: Load, device: str, dtype: torch.dtype, *, theirs: bool) -> Iterator[dict[str, object]]:
    """One report of each server."""
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = LlamaForCausalLM._from_config(config(name), dtype=dtype).eval()  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(3, 250, (load.requests, load.prompt), generator=generator).tolist()
    ours, report = _engine(name, model, prompts, load, device, dtype)
    yield report
    if theirs:
        yield _transformers(name, model, prompts, load, ours)


def _engine(
    name: str, model: Any, prompts: list[list[int]], load: Load, device: str, dtype: torch.dtype
) -> tuple[list[list[int]], dict[str, object]]:
    """The answers of our engine, driven without a scheduler, and its report."""
    spec = ModelSpec.from_hf(config(name).to_dict())
    each = -(-(load.prompt + load.answer) // BLOCK_SIZE)
    pool = KvPool(
        spec, num_blocks=each * load.requests, block_size=BLOCK_SIZE, dtype=dtype, device=torch.device(device)
    )
    limits = EngineLimits(load.prompt + load.answer, load.requests, load.requests * load.prompt)
    llama = Llama(spec, StateWeights(model), TRITON)
    computes: Model = llama
    if device == "cuda":
        capture = capture_cuda(torch.cuda.graph_pool_handle())
        computes = GraphedModel(llama, pool, load.requests, limits.max_model_len, capture)
    no_grammars = Constraints(Path(), spec.vocab_size, 1)
    metrics = ExecutorMetrics(CollectorRegistry())
    runner = ModelRunner(computes, pool, TRITON, metrics)
    engine = Engine(ModelIdentity(name, b""), runner, no_grammars, limits, metrics, pipelines=True)
    _drive(engine, prompts, 2, first_step=1)  # compiles what is not compiled yet
    started = time.perf_counter()
    results = _drive(engine, prompts, load.answer, first_step=4)
    took = time.perf_counter() - started
    prefill = results[0].execute_ns / 1e9
    idle, executing = (sum(getattr(step, name) for step in results[1:]) for name in ("idle_ns", "execute_ns"))
    report = _report("citybus", name, load, took)
    report["prefill_tokens_per_s"] = round(load.requests * load.prompt / prefill)
    report["decode_step_ms"] = round(1e3 * (took - prefill) / max(load.answer - 1, 1), 3)
    report["idle_share_between_steps"] = round(idle / max(idle + executing, 1), 4)
    answers = [[step.sampled[key].token_id for step in results] for key in range(len(prompts))]
    return answers, report


def _drive(engine: Engine, prompts: list[list[int]], count: int, *, first_step: int) -> list[StepResult]:
    """Results of `count` steps: a prefill, and decodes. As under a scheduler, a step is begun while the one before it
    is computed. Raises RuntimeError where one fails.
    """
    info = engine.describe()
    term = engine.open(info.epoch, resume=first_step > 1)
    results: list[StepResult] = []
    begun: list[StepResult | PendingStep] = []
    for index in range(count):
        new = _new(info, prompts) if index == 0 else ()
        known = _known(info, prompts, index) if index > 0 else ()
        begun.append(engine.begin(StepPlan(term, first_step + index, new_sequences=new, scheduled=known)))
        if index > 0:
            results.append(_ended(begun[index - 1]))
    results.append(_ended(begun[-1]))
    engine.step(StepPlan(term, first_step + count, finished_ids=tuple(range(len(prompts)))))
    return results


def _new(info: ExecutorInfo, prompts: list[list[int]]) -> tuple[NewSequence, ...]:
    each, blocks = info.num_blocks // len(prompts), -(-len(prompts[0]) // BLOCK_SIZE)
    return tuple(
        NewSequence(
            key, tuple(prompt), len(prompt), 0, len(prompt), tuple(range(key * each, key * each + blocks)), GREEDY
        )
        for key, prompt in enumerate(prompts)
    )


def _known(info: ExecutorInfo, prompts: list[list[int]], index: int) -> tuple[ScheduledSequence, ...]:
    """The rows of decode `index`, the first being 1."""
    each, position = info.num_blocks // len(prompts), len(prompts[0]) + index - 1
    block, grows = position // BLOCK_SIZE, position % BLOCK_SIZE == 0
    return tuple(ScheduledSequence(key, 1, (key * each + block,) if grows else ()) for key in range(len(prompts)))


def _ended(begun: StepResult | PendingStep) -> StepResult:
    result = begun if isinstance(begun, StepResult) else begun.result()
    if result.error is not None:
        raise RuntimeError(f"step {result.step} failed: {result.error}")
    return result


def _transformers(
    name: str, model: Any, prompts: list[list[int]], load: Load, ours: list[list[int]]
) -> dict[str, object]:
    settings: Any = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=load.answer, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    try:
        model.generate_batch(inputs=prompts[:2], generation_config=settings)
        started = time.perf_counter()
        outputs = model.generate_batch(inputs=prompts, generation_config=settings)
        took = time.perf_counter() - started
    except Exception as error:  # another project's; our own figures stand without it
        return {"server": "transformers", "model": name, "failed": f"{type(error).__name__}: {error}"[:300]}
    report = _report("transformers", name, load, took)
    firsts = [output.generated_tokens[:1] for output in outputs.values()]
    report["answers"] = len(firsts)
    report["first_tokens_equal"] = sum(first in ([answer[0]] for answer in ours) for first in firsts)
    return report


def _report(server: str, name: str, load: Load, took: float) -> dict[str, object]:
    return {
        "server": server,
        "model": name,
        "requests": load.requests,
        "prompt": load.prompt,
        "answer": load.answer,
        "output_tokens_per_s": round(load.requests * load.answer / took, 1),
    }
