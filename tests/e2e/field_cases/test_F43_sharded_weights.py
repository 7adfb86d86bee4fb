"""Sharded checkpoints: served whole, or not at all, and the file or the tensor at fault is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from citybus import Unavailable
from tests.checkpoints import write_tiny
from tests.e2e.field_cases.field import Field, InProcess, running_field, scheduler_field
from tests.e2e.field_cases.starting import start_refused

SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The weights of `tiny`, in three shards."""
    return write_tiny(tmp_path / "sharded", max_model_len=256, shards=3)


def some_tensor(shard: Path) -> str:
    with safe_open(shard, framework="pt") as file:
        return str(min(file.keys()))


def delete_shard(folder: Path) -> str:
    (folder / SHARDS[1]).unlink()
    return SHARDS[1]


def cut_shard_by_a_byte(folder: Path) -> str:
    return cut(folder, (folder / SHARDS[1]).stat().st_size - 1)


def cut_shard_in_half(folder: Path) -> str:
    return cut(folder, (folder / SHARDS[1]).stat().st_size // 2)


def cut(folder: Path, size: int) -> str:
    with (folder / SHARDS[1]).open("r+b") as shard:
        shard.truncate(size)
    return SHARDS[1]


def name_a_missing_file(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][some_tensor(folder / SHARDS[1])] = "model-00004-of-00003.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    return "model-00004-of-00003.safetensors"


def put_a_tensor_in_two_shards(folder: Path) -> str:
    name = some_tensor(folder / SHARDS[1])
    save_file(load_file(folder / SHARDS[0]) | {name: torch.zeros(1)}, folder / SHARDS[0])
    return name


def delete_the_index(folder: Path) -> str:
    (folder / INDEX).unlink()
    return INDEX


def change_a_shape(folder: Path) -> str:
    tensors = load_file(folder / SHARDS[1])
    name = min(tensors)
    save_file(tensors | {name: torch.zeros(3, 5)}, folder / SHARDS[1])
    return name


def leave_a_tensor_out(folder: Path) -> str:
    tensors, index = load_file(folder / SHARDS[1]), json.loads((folder / INDEX).read_text())
    name = min(tensors)
    del tensors[name], index["weight_map"][name]
    save_file(tensors, folder / SHARDS[1])
    (folder / INDEX).write_text(json.dumps(index))
    return name


@pytest.mark.parametrize(
    "damage",
    [
        delete_shard,
        cut_shard_by_a_byte,
        cut_shard_in_half,
        name_a_missing_file,
        put_a_tensor_in_two_shards,
        delete_the_index,
        change_a_shape,
        leave_a_tensor_out,
    ],
)
def test_F43_damaged_checkpoint_does_not_start(sharded: Path, damage: Callable[[Path], str]) -> None:
    name = damage(sharded)
    assert name in start_refused("executor_svc", sharded)


@pytest.fixture(scope="module")
def sharded_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Three shards; beside them a stray file, and in one of them a tensor that the model has no use for."""
    folder = tmp_path_factory.mktemp("sharded-bus")
    model = write_tiny(folder / "tiny", max_model_len=256, shards=3)
    save_file({"model.norm.weight": torch.full((64,), 9.0), "stray": torch.zeros(2)}, model / "stray.safetensors")
    index = json.loads((model / INDEX).read_text())
    index["weight_map"]["model.unused.weight"] = SHARDS[2]
    (model / INDEX).write_text(json.dumps(index))
    save_file(load_file(model / SHARDS[2]) | {"model.unused.weight": torch.zeros(7)}, model / SHARDS[2])
    with running_field(model, folder / "bus", executor=("--num-blocks", 64)) as field:
        yield field


@pytest.fixture
def sharded_field(sharded_session: Field) -> Iterator[Field]:
    yield sharded_session
    sharded_session.check()


@pytest.mark.parametrize("length", [1, 16, 33])
def test_F43_shards_answer_as_the_single_file_does(tiny_field: Field, sharded_field: Field, length: int) -> None:
    prompt = [(7 * position) % 250 for position in range(length)]
    assert sharded_field.reference(prompt, 60) == tiny_field.reference(prompt, 60)


def test_F43_nobody_is_served_before_the_weights_are_loaded(
    sharded: Path, sharded_field: Field, tmp_path: Path
) -> None:
    events = [entry["event"] for entry in sharded_field.bus.executor.events()]
    assert events.index("model loaded") < events.index("serving")
    nobody = InProcess("127.0.0.1:1")
    with pytest.raises(Unavailable, match="no server was ready"):
        scheduler_field(sharded, tmp_path / "bus", nobody, start_s=1.0).__enter__()
