"""One thread and reproducible products, set up before the first product of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernels.backend import kernels_for
from kernels.cpu.library import InstructionSet, NativeLibrary, load_library

kernels_for(torch.device("cpu"))

LIBRARY = load_library()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest, one_thread: None) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.fixture
def library() -> NativeLibrary:
    if LIBRARY is None:
        pytest.skip("the native library is not built")
    return LIBRARY


@pytest.fixture(params=LIBRARY.instruction_sets() if LIBRARY else [], ids=lambda isa: isa.name)
def isa(request: pytest.FixtureRequest) -> InstructionSet:
    """Each that this processor has."""
    value: InstructionSet = request.param
    return value
