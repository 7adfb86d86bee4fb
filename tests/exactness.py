"""Where a token's bits are promised not to depend on its batch: the processors it was tried on."""

from __future__ import annotations

import pytest
import torch

_CPU = torch.cpu.get_capabilities()

_FLOAT32 = torch.backends.mkl.is_available() and bool(_CPU.get("avx2"))  # type: ignore[no-untyped-call]
_BFLOAT16 = _FLOAT32 and bool(_CPU.get("avx512_bf16")) and not _CPU.get("amx_bf16")
_REASON = "another processor: its products may be summed in another order for every batch size"

EXACT_DTYPES = [
    pytest.param(torch.float32, marks=pytest.mark.skipif(not _FLOAT32, reason=_REASON)),
    pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not _BFLOAT16, reason=_REASON)),
]
