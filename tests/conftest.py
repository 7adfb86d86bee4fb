"""What every test has."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A suite started in the background of a script inherits that Ctrl-C is ignored, and would pass it on to every process
# whose Ctrl-C it tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton reads this when it is first imported. Without a GPU its kernels are interpreted, on tensors of the CPU; with
# one, TRITON_INTERPRET=0 has their tests compile them.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Torch's threads read this when it is first imported, and wait without spinning: beside other tests there is no core
# for each, and one that spins takes it from the one it waits for, which makes some tests take 50 times as long.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

settings.register_profile("default", deadline=None, max_examples=200, stateful_step_count=60)
settings.register_profile("deep", deadline=None, max_examples=2_000, stateful_step_count=100)
settings.load_profile("default")
