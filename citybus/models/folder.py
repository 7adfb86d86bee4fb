"""What a model folder must hold: a configuration, a tokenizer, and weights as safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from citybus.failure import Failure

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_WORDS = ("config.json", "tokenizer.json")
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format itself


def check_folder(folder: Path) -> list[str]:
    """Names of the files that make up the model in `folder`.

    The headers of the weights are read, so that a file cut short is found; the weights themselves are not. Raises
    `Failure` with what is missing or broken.
    """
    if folder.suffix == ".gguf":
        raise Failure(f"{folder}: GGUF files are not served; give a folder in Hugging Face layout with safetensors")
    if not folder.is_dir():
        raise Failure(
            f"there is no folder {folder}: give one in Hugging Face layout (config.json, tokenizer.json, ...)"
        )
    if missing := [name for name in _WORDS if not (folder / name).is_file()]:
        raise Failure(
            f"{folder} is not in Hugging Face layout, as it has no {missing[0]}: give a folder with "
            f"{' and '.join(_WORDS)}, and with safetensors"
        )
    config = _read_json(folder / "config.json")
    if not config.get("architectures"):
        raise Failure(f"{folder / 'config.json'} names no architecture: it is not the configuration of a model")
    if "model" not in _read_json(folder / "tokenizer.json"):
        raise Failure(f"{folder / 'tokenizer.json'} is not a tokenizer: save it with the tokenizers library")
    weights = _weight_files(folder)
    for name in weights:
        check_safetensors(folder / name)
    words = [path.name for pattern in ("*.json", "*.jinja", "LICENSE*") for path in folder.glob(pattern)]
    return sorted({*weights, *(name for name in words if (folder / name).is_file())})


def check_safetensors(path: Path) -> None:
    """Read the header of a safetensors file and hold it against the file's size. Raises `Failure`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length) if length <= _MAX_HEADER_BYTES else b"")
        tensors = [facts for name, facts in header.items() if name != "__metadata__"]
        expected = 8 + length + max((facts["data_offsets"][1] for facts in tensors), default=0)
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Failure(f"{path} is not a safetensors file, or damaged: copy it again") from error
    if size != expected:
        raise Failure(f"{path} has {size} bytes where its header says {expected}: copy it again")


def _weight_files(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        names = _read_json(folder / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) and "/" not in name for name in names.values()):
            raise Failure(f"{folder / INDEX} is not an index of weight files: copy it again")
        return sorted(set(names.values()))
    if not (folder / WEIGHTS).is_file():
        raise Failure(f"{folder} has no {WEIGHTS} and no {INDEX}: only safetensors are served; save the model as such")
    return [WEIGHTS]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Failure(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Failure(f"{path} is not a JSON object")
    return content
