"""Where the tests of Triton's kernels have their tensors: on the CPU where the kernels are interpreted."""

from __future__ import annotations

import os

DEVICE = "cpu" if os.environ["TRITON_INTERPRET"] == "1" else "cuda"
