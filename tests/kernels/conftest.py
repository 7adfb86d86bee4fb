"""One thread and reproducible products, set up before the first product of the process."""

from __future__ import annotations

import pytest
import torch

from kernels.backend import kernels_for

kernels_for(torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
