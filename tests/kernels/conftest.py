"""One thread and reproducible products, set up before the first product of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.backend import kernels_for

kernels_for(torch.device("cpu"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest, one_thread: None) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)
