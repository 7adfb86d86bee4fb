"""The text side of a model folder in Hugging Face layout: tokenizer, end tokens, chat template. No torch needed.

End tokens are the union of the generation config's `eos_token_id` (config.json's, where that is absent) and the
tokenizer's own end token: model folders in the wild leave either out. Sampling defaults of generation_config.json
are not used: what a request does not say is 1 for temperature and off for every filter, whatever the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as BackendTokenizer

from common.errors import StartupError


@dataclass(frozen=True, slots=True)
class ChatTemplateSource:
    """A chat template as it stands in the model folder, and the file it was found in."""

    text: str
    file: Path


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the scheduler needs of a model folder. `special_tokens` maps a role ("bos_token") to its text;
    `max_model_len` is the most tokens that the model allows, None where the folder does not say.
    """

    backend: BackendTokenizer
    special_tokens: Mapping[str, str]
    eos_token_ids: frozenset[int]
    chat_template: ChatTemplateSource | None
    max_model_len: int | None = None


def read_model_files(folder: Path) -> ModelFiles:
    """Read the text side of `folder`. Raises `StartupError`, which names the file that is missing or broken."""
    if folder.suffix == ".gguf" and folder.is_file():
        raise StartupError(f"{folder}: GGUF files are not read: --model must be a model folder with safetensors")
    if not folder.is_dir():
        raise StartupError(f"there is no model folder {folder}: add one with `citybus model add`")
    backend = _read_tokenizer(folder / "tokenizer.json")
    config = _read_json(folder / "tokenizer_config.json")
    special_tokens = _special_tokens(config)
    tokenizer_eos = backend.token_to_id(special_tokens.get("eos_token", ""))
    eos_token_ids = _configured_eos(folder) | ({tokenizer_eos} if tokenizer_eos is not None else set())
    template = _find_chat_template(folder, config)
    return ModelFiles(backend, special_tokens, frozenset(eos_token_ids), template, _max_model_len(folder))


def _read_tokenizer(path: Path) -> BackendTokenizer:
    if not path.is_file():
        raise StartupError(f"{path} is missing: the model folder needs a tokenizer in that format")
    try:
        backend = BackendTokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise StartupError(f"{path} is broken ({error}): copy it again") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`, empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} is broken ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise StartupError(f"{path} is broken (not a JSON object): copy it again")
    return content


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens; each is written as its text or as an object that holds it."""
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _configured_eos(folder: Path) -> set[int]:
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if any(type(token_id) is not int or token_id < 0 for token_id in ids):
            raise StartupError(f"{folder / name}: eos_token_id must be a token id or a list of token ids")
        return set(ids)
    return set()


def _max_model_len(folder: Path) -> int | None:
    value = _read_json(folder / "config.json").get("max_position_embeddings")
    return value if type(value) is int and value > 0 else None  # one that no model can have is the executor's to refuse


def _find_chat_template(folder: Path, config: Mapping[str, Any]) -> ChatTemplateSource | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        try:
            return ChatTemplateSource(jinja.read_text(encoding="utf-8"), jinja)
        except (OSError, ValueError) as error:
            raise StartupError(f"{jinja} is broken ({error}): copy it again") from error
    found = (
        (folder / "chat_template.json", _read_json(folder / "chat_template.json").get("chat_template")),
        (folder / "tokenizer_config.json", config.get("chat_template")),
    )
    return next((ChatTemplateSource(_default(value, file), file) for file, value in found if value), None)


def _default(value: object, file: Path) -> str:
    """The template itself, or the one named "default" (or the only one) of a list of named ones."""
    if isinstance(value, str):
        return value
    try:
        named = {entry["name"]: entry["template"] for entry in value}  # type: ignore[attr-defined]
    except (TypeError, KeyError):
        named = {}
    chosen = next(iter(named.values())) if len(named) == 1 else named.get("default")
    if not isinstance(chosen, str):
        raise StartupError(f"{file}: chat_template must be a text, or a list of named texts with one named default")
    return chosen
