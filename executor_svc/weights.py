"""Reading weights from safetensors files, and from nothing else: other formats can hold code.

The format: https://huggingface.co/docs/safetensors. A folder has model.safetensors, or several shards and
model.safetensors.index.json, which says what is where; any other file in it is ignored then.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from common.errors import StartupError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5")


class Checkpoint:
    """The tensors of a model folder, converted to `dtype` on `device` as they are taken.

    Raises `StartupError`, here and in `take`, that names the file or the tensor at fault.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._location: dict[str, Path] = {}
        self._handles: dict[Path, Any] = {}
        self.taken_bytes = 0
        index = _read_index(folder)
        for path in sorted(folder / name for name in set(index.values())) if index else [_single_file(folder)]:
            self._open(path)
        for name, file in index.items():
            if self._location.get(name) != folder / file:
                raise StartupError(f"{folder / file} lacks the tensor {name}, which {INDEX} says it has")

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name`, which must have `shape`."""
        path = self._location.get(name)
        if path is None:
            raise StartupError(f"the tensor {name} is missing from the checkpoint: get its files again")
        found = tuple(self._handles[path].get_slice(name).get_shape())
        if found != shape:
            raise StartupError(f"{path}: the tensor {name} has shape {list(found)} and should have {list(shape)}")
        with _naming(path):
            tensor = self._handles[path].get_tensor(name)
        if tensor.dtype not in _FLOATS:
            raise StartupError(f"{path}: the tensor {name} has numbers of type {tensor.dtype}, which is not supported")
        # A copy: a file changed under a running server must not change, or crash, it.
        taken: torch.Tensor = tensor.to(device=self._device, dtype=self._dtype, copy=True)
        self.taken_bytes += taken.nbytes
        return taken

    def _open(self, path: Path) -> None:
        with _naming(path):
            handle: Any = safe_open(path, framework="pt")
            names = list(handle.keys())
        for name in names:
            if name in self._location:
                raise StartupError(f"the tensor {name} is in two files: {self._location[name]} and {path}")
            self._location[name] = path
        self._handles[path] = handle


def _read_index(folder: Path) -> dict[str, str]:
    """Tensor name -> file name; empty where there is no index."""
    path = folder / INDEX
    if not path.exists():
        return {}
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        wrong = [file for file in files.values() if Path(file).name != file or not file.endswith(".safetensors")]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise StartupError(f"{path} is not an index of safetensors files: get the file again") from error
    if wrong or not files:
        raise StartupError(f"{path} must name .safetensors files beside it, not {wrong[:1]}")
    return dict(files)


def _single_file(folder: Path) -> Path:
    if (folder / SINGLE).exists():
        return folder / SINGLE
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise StartupError(f"{folder} has several .safetensors files and no {INDEX}: get that file too")
    others = sorted(path.name for path in folder.glob("*") if path.suffix in _OTHER_FORMATS)
    if others:
        raise StartupError(
            f"{folder} has weights only in a format that is not read ({others[0]}): save the model as safetensors"
        )
    raise StartupError(f"{folder} has no weights: {SINGLE} is missing")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Whatever the file's reader complains of, as an error that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise StartupError(f"{path} is missing: get the file again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise StartupError(f"{path} is damaged or cut short ({error}): get the file again") from error
