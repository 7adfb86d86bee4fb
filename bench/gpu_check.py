"""Everything there is to know of a GPU in one run of some minutes: is it right, and how fast is it?

    python -m bench.gpu_check                  on the GPU
    python -m bench.gpu_check --cpu-dry-run    the same steps, tiny and interpreted, to see that they run

One line of JSON for each finding, the last of which says whether everything was right; the status is 1 where not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cpu-dry-run", action="store_true", help="interpret the kernels on the CPU, at tiny sizes")
    parser.add_argument("--models", nargs="*", default=["1B", "8B"], choices=["1B", "8B"], help="default: both")
    parser.add_argument("--no-transformers", action="store_true", help="leave the comparison out")
    options = parser.parse_args()
    os.environ["TRITON_INTERPRET"] = "1" if options.cpu_dry_run else "0"
    import torch  # only now: Triton, which others import too, reads the line above at its first import

    from bench import gpu_kernels, gpu_models

    if not options.cpu_dry_run and not torch.cuda.is_available():
        print("gpu_check: torch finds no CUDA device; try --cpu-dry-run", file=sys.stderr)
        return 2
    device = "cpu" if options.cpu_dry_run else "cuda"
    started = time.perf_counter()
    failed = 0

    def say(part: str, finding: dict[str, object]) -> None:
        print(json.dumps({"part": part, "at_s": round(time.perf_counter() - started, 1), **finding}), flush=True)

    say("device", {"device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__})
    narrow = [] if options.cpu_dry_run else [torch.float16, torch.bfloat16]
    for finding in gpu_kernels.errors(device, [torch.float32, *narrow]):
        failed += not finding["ok"]
        say("correctness", finding)
    say("ceiling", {**gpu_kernels.ceilings(device, 64 if options.cpu_dry_run else 8192)})
    tiny = gpu_kernels.Sizes(2, 1, 16, 32, 32, 64, sequences=2, context=20, prefill=20)
    sizes, dtype = (tiny, torch.float32) if options.cpu_dry_run else (gpu_kernels.Sizes(), torch.bfloat16)
    for finding in gpu_kernels.times(sizes, device, dtype):
        say("time", finding)
    models = ["tiny"] if options.cpu_dry_run else options.models
    load = gpu_models.Load(2, 5, 3) if options.cpu_dry_run else gpu_models.Load(64, 512, 256)
    theirs = not (options.cpu_dry_run or options.no_transformers)
    for name in models:
        for finding in gpu_models.compare(name, load, device, dtype, theirs=theirs):
            say("model", finding)
    say("end", {"ok": failed == 0})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
