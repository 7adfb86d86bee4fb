"""Checkpoints, good and bad."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from common.errors import StartupError
from executor_svc.weights import INDEX, Checkpoint
from tests.checkpoints import write_chain, write_tensors, write_tiny
from tests.executor.conftest import MakeEngine
from tests.executor.driver import generate

PROMPT = list(range(50, 75))
SHARD_TWO = "model-00002-of-00003.safetensors"
QUERIES = "model.layers.0.self_attn.q_proj.weight"


def opened(folder: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    return Checkpoint(folder, dtype, torch.device("cpu"))


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "sharded", shards=3)


def test_F43_shards_give_the_tokens_of_the_single_file(make_engine: MakeEngine, sharded: Path) -> None:
    assert generate(make_engine(sharded), [PROMPT], 16) == generate(make_engine(), [PROMPT], 16)


def delete_shard(folder: Path) -> None:
    (folder / SHARD_TWO).unlink()


def truncate(share: float, less: int = 0) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        content = (folder / SHARD_TWO).read_bytes()
        (folder / SHARD_TWO).write_bytes(content[: int(len(content) * share) - less])

    return damage


def edit_index(folder: Path, **files: str) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= files
    (folder / INDEX).write_text(json.dumps(index))


def name_a_missing_file(folder: Path) -> None:
    edit_index(folder, extra="model-00004-of-00003.safetensors")


def name_a_missing_tensor(folder: Path) -> None:
    edit_index(folder, extra=SHARD_TWO)


def leave_the_folder(folder: Path) -> None:
    edit_index(folder, extra="../elsewhere.safetensors")


def edit_shard(folder: Path, **tensors: torch.Tensor) -> None:
    save_file(load_file(folder / SHARD_TWO) | tensors, folder / SHARD_TWO)


def repeat_a_tensor(folder: Path) -> None:
    edit_shard(folder, **{"model.embed_tokens.weight": torch.zeros(272, 64)})


def remove_index(folder: Path) -> None:
    (folder / INDEX).unlink()


def break_index(folder: Path) -> None:
    (folder / INDEX).write_text("[1, 2]")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (delete_shard, [SHARD_TWO, "missing"]),
        (truncate(1, 1), [SHARD_TWO, "cut short"]),
        (truncate(0.5), [SHARD_TWO, "cut short"]),
        (truncate(0), [SHARD_TWO, "cut short"]),
        (name_a_missing_file, ["model-00004-of-00003.safetensors", "missing"]),
        (name_a_missing_tensor, [SHARD_TWO, "extra"]),
        (leave_the_folder, [INDEX, "../elsewhere.safetensors"]),
        (repeat_a_tensor, ["model.embed_tokens.weight", SHARD_TWO, "model-00001-of-00003.safetensors"]),
        (remove_index, [INDEX]),
        (break_index, [INDEX]),
    ],
)
def test_F43_a_bad_set_of_files_is_refused_by_name(
    make_engine: MakeEngine, sharded: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    damage(sharded)
    with pytest.raises(StartupError) as refused:
        make_engine(sharded)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "\n" not in str(refused.value)


def test_F43_a_tensor_of_wrong_shape_is_refused_by_name(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    write_tensors(folder, tensors | {QUERIES: tensors[QUERIES][:-1].clone()})
    with pytest.raises(StartupError, match=rf"{QUERIES} has shape \[63, 64\] and should have \[64, 64\]"):
        make_engine(folder)


def test_F43_a_missing_tensor_is_refused_by_name(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[QUERIES]
    write_tensors(folder, tensors)
    with pytest.raises(StartupError, match=QUERIES):
        make_engine(folder)


def test_F43_strays_beside_the_index_and_unused_tensors_are_ignored(make_engine: MakeEngine, sharded: Path) -> None:
    save_file({"model.embed_tokens.weight": torch.zeros(3)}, sharded / "stray.safetensors")
    save_file({"model.embed_tokens.weight": torch.zeros(3)}, sharded / "model.safetensors")
    (sharded / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    edit_shard(sharded, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    assert generate(make_engine(sharded), [PROMPT], 8) == generate(make_engine(), [PROMPT], 8)


class Planted:
    """Unpickling this makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth", "model.gguf"])
def test_F55_other_formats_are_refused_and_never_opened(make_engine: MakeEngine, tmp_path: Path, name: str) -> None:
    folder = write_chain(tmp_path / "model", {})
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Planted(tmp_path / "marker")}, folder / name)
    with pytest.raises(StartupError, match=rf"{name}.*save the model as safetensors"):
        make_engine(folder)
    assert not (tmp_path / "marker").exists()


def test_F55_a_pickle_named_safetensors_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = write_chain(tmp_path / "model", {})
    torch.save({"weight": Planted(tmp_path / "marker")}, folder / "model.safetensors")
    with pytest.raises(StartupError, match=r"model\.safetensors is damaged"):
        make_engine(folder)
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [272, 64], "data_offsets": [0, 10**12]},
        {"dtype": "F32", "shape": [272, 64], "data_offsets": [64, 0]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 64]},
        {"dtype": "F32", "shape": [16], "data_offsets": [0, 32]},
        {"dtype": "PICKLE", "shape": [16], "data_offsets": [0, 64]},
        {"shape": [16], "data_offsets": [0, 64]},
    ],
)
def test_F55_a_header_that_lies_is_refused(make_engine: MakeEngine, tmp_path: Path, entry: dict[str, object]) -> None:
    folder = write_chain(tmp_path, {})
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
    with pytest.raises(StartupError, match=r"model\.safetensors is damaged"):
        make_engine(folder)


def test_F55_a_header_longer_than_the_file_is_refused(make_engine: MakeEngine, tmp_path: Path) -> None:
    folder = write_chain(tmp_path, {})
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(StartupError, match=r"model\.safetensors is damaged"):
        make_engine(folder)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"model\.safetensors is missing"):
        opened(tmp_path)


def test_a_single_file_of_any_name_will_do(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "weights.safetensors")
    assert torch.equal(opened(tmp_path).take("a", 3), torch.ones(3))


def test_numbers_are_converted_and_counted(tmp_path: Path) -> None:
    save_file({"a": torch.full((2, 3), 0.5, dtype=torch.float16), "b": torch.ones(4)}, tmp_path / "model.safetensors")
    checkpoint = opened(tmp_path, torch.bfloat16)
    assert torch.equal(checkpoint.take("a", 2, 3), torch.full((2, 3), 0.5, dtype=torch.bfloat16))
    assert checkpoint.take("b", 4).dtype is torch.bfloat16
    assert checkpoint.taken_bytes == 2 * (6 + 4)


def test_integers_are_not_weights(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(StartupError, match=r"tensor a has numbers of type torch\.int8"):
        opened(tmp_path).take("a", 3)


def test_a_file_changed_afterwards_does_not_change_the_weights(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "model.safetensors")
    taken = opened(tmp_path).take("a", 1000)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(10)
    assert taken.sum() == 1000
