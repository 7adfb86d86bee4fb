"""How far are logits in bf16, and of fp8 and int8 keys and values, from those in float32? Over every prompt token.

Run: python -m bench.cpu_accuracy --model FOLDER
The error is the root mean square of the difference to torch in float32, from the same bf16 weights.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from bench.cpu_forward import CPU, Case, native_library
from bench.prompts import BUILT_IN
from executor_svc.batch import Batch
from executor_svc.kv_pool import KvPool
from executor_svc.models.llama import Llama
from executor_svc.models.llama_native import NativeLlama, native_shape
from executor_svc.models.registry import Model
from executor_svc.models.spec import ModelSpec
from executor_svc.weights import Checkpoint
from kernels.backend import kernels_for


def prompt_batch(token_ids: list[int]) -> Batch:
    """One prompt, of which every token has logits."""
    batch = Case("prompt", 1, len(token_ids), len(token_ids)).batch()
    return replace(batch, token_ids=torch.tensor(token_ids), drawing_rows=torch.arange(len(token_ids)))


def logits(model: Model, kv_dtype: torch.dtype, batches: list[Batch]) -> torch.Tensor:
    """Float32 [tokens, vocab_size], through a pool of `kv_dtype`."""
    blocks = max(batch.paged.block_tables.numel() for batch in batches)
    pool = KvPool(model.spec, num_blocks=blocks, block_size=16, dtype=kv_dtype, device=CPU)
    return torch.cat([model.forward(batch, pool).clone() for batch in batches])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder in Hugging Face layout")
    options = parser.parse_args()
    library = native_library()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    batches = [prompt_batch(tokenizer.encode(prompt).ids) for prompt in BUILT_IN]
    spec, kernels = ModelSpec.read(options.model), kernels_for(CPU)

    def by_torch(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        model, name = Llama(spec, Checkpoint(options.model, dtype, CPU), kernels), str(dtype).replace(".", " ")
        pools = {name: dtype, f"{name}, fp8 KV": torch.float8_e4m3fn, f"{name}, int8 KV": torch.int8}
        return {row: logits(model, kv_dtype, batches) for row, kv_dtype in pools.items()}

    with torch.inference_mode():
        results = by_torch(torch.float32)
        exact = results.pop("torch float32")
        results |= by_torch(torch.bfloat16)
        for isa in library.instruction_sets():
            checkpoint = Checkpoint(options.model, torch.bfloat16, CPU)
            threads = library.threads(isa, torch.get_num_threads())
            model = NativeLlama(spec, checkpoint, threads.model(native_shape(spec)))
            results[f"native {isa.name.lower()}"] = logits(model, torch.bfloat16, batches)
    print(f"{len(exact)} tokens, logits of {exact.square().mean().sqrt():.2f} (root mean square)")
    for name, found in results.items():
        error = (found - exact).square().mean().sqrt()
        same = (found.argmax(-1) == exact.argmax(-1)).float().mean()
        print(f"{name:<24} error {error:.4f}, same likeliest token {100 * same:.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
