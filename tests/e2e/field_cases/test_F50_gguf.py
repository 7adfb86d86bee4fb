"""A GGUF file is refused by both services with what to do instead; nothing of it is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoints import write_tiny
from tests.e2e.field_cases.starting import start_refused


@pytest.mark.parametrize("service", ["executor_svc", "scheduler_svc"])
def test_F50_gguf_file_as_the_model_is_refused(tmp_path: Path, service: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF\x03\0\0\0")
    assert f"{file}: GGUF files are not read" in start_refused(service, file)


def test_F50_folder_with_gguf_weights_is_refused(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "model.gguf")
    line = start_refused("executor_svc", folder)
    assert "a format that is not read (model.gguf): save the model as safetensors" in line
