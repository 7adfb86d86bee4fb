"""The text side of a model folder: what is read, and what is said of a broken one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.errors import StartupError
from scheduler_svc.model_files import read_model_files
from tests.scheduler.text_folders import EOS, byte_level, write_folder, write_json


@pytest.mark.parametrize(
    ("config_eos", "generation_eos", "tokenizer_eos", "expected"),
    [
        (2, [2, 7], "<|eos|>", {2, 7, EOS}),
        (2, 7, "<|eos|>", {7, EOS}),
        (2, None, "<|eos|>", {2, EOS}),
        ([2, 3], None, None, {2, 3}),
        (2, [7], None, {7}),
        (2, [EOS], {"content": "<|eos|>", "lstrip": False}, {EOS}),
        (None, None, "<|eos|>", {EOS}),
        (None, None, None, set()),
        (2, None, "not in the vocabulary", {2}),
    ],
)
def test_F45_end_tokens_are_those_of_the_configs_and_the_tokenizer(
    tmp_path: Path, config_eos: Any, generation_eos: Any, tokenizer_eos: Any, expected: set[int]
) -> None:
    write_folder(tmp_path, eos=config_eos, generation_eos=generation_eos, eos_token=tokenizer_eos)
    assert read_model_files(tmp_path).eos_token_ids == expected


def test_F45_generation_config_without_end_tokens_leaves_it_to_the_config(tmp_path: Path) -> None:
    write_folder(tmp_path, eos=5)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": None, "temperature": 0.6})
    assert read_model_files(tmp_path).eos_token_ids == {5, EOS}


@pytest.mark.parametrize("broken", ["2", -1, True, [2, None], {"id": 2}])
def test_end_token_that_is_no_id(tmp_path: Path, broken: Any) -> None:
    write_folder(tmp_path, generation_eos=broken)
    with pytest.raises(StartupError, match=r"generation_config.json: eos_token_id must be"):
        read_model_files(tmp_path)


def test_special_tokens_are_named_by_text(tmp_path: Path) -> None:
    write_folder(tmp_path, bos_token={"content": "<|bos|>"}, pad_token=None, unk_token=3)
    files = read_model_files(tmp_path)
    assert files.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


def named(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "template": f"template {name}"} for name in names]


@pytest.mark.parametrize(
    ("in_config", "expected"),
    [
        ("plain", "plain"),
        (named("default"), "template default"),
        (named("tool_use", "default"), "template default"),
        (named("rag"), "template rag"),
    ],
)
def test_chat_template_of_the_tokenizer_config(tmp_path: Path, in_config: Any, expected: str) -> None:
    source = read_model_files(write_folder(tmp_path, chat_template=in_config)).chat_template
    assert source is not None
    assert (source.text, source.file) == (expected, tmp_path / "tokenizer_config.json")


def test_chat_template_in_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    write_folder(tmp_path, chat_template="third")
    write_json(tmp_path / "chat_template.json", {"chat_template": "second"})
    second = read_model_files(tmp_path).chat_template
    (tmp_path / "chat_template.jinja").write_text("first\n")
    first = read_model_files(tmp_path).chat_template
    assert second is not None and first is not None
    assert (second.text, second.file.name) == ("second", "chat_template.json")
    assert (first.text, first.file.name) == ("first\n", "chat_template.jinja")


def test_no_chat_template(tmp_path: Path) -> None:
    assert read_model_files(write_folder(tmp_path, chat_template=None)).chat_template is None


@pytest.mark.parametrize("broken", [7, [{"name": "default"}], ["default"], named("rag", "tool_use")])
def test_chat_template_of_another_kind(tmp_path: Path, broken: Any) -> None:
    write_folder(tmp_path, chat_template=broken)
    with pytest.raises(StartupError, match=r"tokenizer_config.json: chat_template must be"):
        read_model_files(tmp_path)


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=10)
    files = read_model_files(write_folder(tmp_path, tokenizer))
    assert files.backend.encode("hello", add_special_tokens=False).ids == list(b"hello")


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"there is no model folder .*nowhere: add one with `citybus model add`"):
        read_model_files(tmp_path / "nowhere")


def test_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"tokenizer.json is missing"):
        read_model_files(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "chat_template.json"],
)
@pytest.mark.parametrize("content", [b'{"eos_token_id": ', b"[]", b"\xff\xfe"])
def test_broken_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_folder(tmp_path, chat_template=None)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StartupError, match=rf"/{name} is broken \(.*\): copy it again"):
        read_model_files(tmp_path)


def test_broken_template_file_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(StartupError, match=r"chat_template.jinja is broken"):
        read_model_files(tmp_path)


@pytest.mark.parametrize(("value", "expected"), [(8192, 8192), (None, None), (0, None), (True, None), ("8192", None)])
def test_longest_sequence_is_what_the_config_says(tmp_path: Path, value: Any, expected: int | None) -> None:
    folder = write_folder(tmp_path)
    write_json(folder / "config.json", {"max_position_embeddings": value})
    assert read_model_files(folder).max_model_len == expected
