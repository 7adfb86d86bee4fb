"""Buses that several field cases share. Each test that takes one ends with CANARY and IDLE."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import EOS, IM_END, follow, write_chain, write_tiny
from tests.e2e.field_cases.field import Field, running_field

EMOJI = "😀".encode()

SCRIPT = {
    **follow(*EMOJI, *b"ok", EOS),
    **follow(0xE2, *b"xy", EOS),
    **follow(*b"@ABCDEFG", EOS),
    **follow(*b"!hi", EOS),
    **follow(ord("%"), ord("u"), IM_END, ord("v"), EOS),
}
"""What the CHAIN models say: the token that follows each; whatever is not named is followed by EOS."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TINY, L = 256."""
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny", max_model_len=256)


@pytest.fixture(scope="session")
def tiny_session(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    executor = ("--num-blocks", 512, "--metrics-listen", "127.0.0.1:0")
    scheduler = ("--max-request-bytes", 16 * 2**20)
    with running_field(tiny, tmp_path_factory.mktemp("tiny-bus"), executor=executor, scheduler=scheduler) as field:
        yield field


@pytest.fixture
def tiny_field(tiny_session: Field) -> Iterator[Field]:
    """TINY, L = 256, with more of everything than is needed."""
    yield tiny_session
    tiny_session.check()


@pytest.fixture(scope="session")
def tight_session(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    flags = ("--num-blocks", 40, "--max-step-tokens", 16, "--max-sequences", 6)
    with running_field(tiny, tmp_path_factory.mktemp("tight-bus"), executor=flags) as field:
        yield field


@pytest.fixture
def tight_field(tight_session: Field) -> Iterator[Field]:
    """TINY, L = 256, with little of everything: P = 40, C = 16, S = 6."""
    yield tight_session
    tight_session.check()


@pytest.fixture(scope="session")
def chain_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("chain-bus")
    model = write_chain(folder / "chain", SCRIPT, max_model_len=64)
    with running_field(model, folder / "bus", executor=("--num-blocks", 64)) as field:
        yield field


@pytest.fixture
def chain_field(chain_session: Field) -> Iterator[Field]:
    """CHAIN, which says `SCRIPT`; L = 64."""
    yield chain_session
    chain_session.check()


@pytest.fixture(scope="session")
def bare_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("bare-bus")
    model = write_chain(folder / "bare", SCRIPT, max_model_len=64, bos=False, eos_special=False, chat_template=None)
    with running_field(model, folder / "bus", executor=("--num-blocks", 64)) as field:
        yield field


@pytest.fixture
def bare_field(bare_session: Field) -> Iterator[Field]:
    """CHAIN as in `chain_field`; no BOS token, no chat template, and an EOS token that is not flagged special."""
    yield bare_session
    bare_session.check()
