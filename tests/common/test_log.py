"""Logs: one JSON object a line, bound context, structured exceptions, and never what a request holds."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest

SAMPLE = """
import logging
from pathlib import Path

import structlog

from common import log
from common.step import NewSequence, Sampling
from citybus.v1 import generation_pb2

log.configure("scheduler", "{level}")
logger = structlog.get_logger()
prompt = "SECRET words"
structlog.contextvars.bind_contextvars(request_id="r-1", step=7)
logger.debug("quiet")
logger.info("started", port=50051, path=Path("/models"), share=0.5, nothing=None, on=True)
sequence = NewSequence(1, (83, 69, 67), 3, 0, 3, (0,), Sampling())
message = generation_pb2.GenerateRequest(text=prompt)
logger.info("objects", sequence=sequence, inside=[message, {{"deep": (message, 2)}}], raw=prompt.encode())
try:
    len(sequence)
except TypeError:
    logger.exception("failed")
logging.getLogger("library").info("chatter")
logging.getLogger("library").warning("trouble with %s", "a socket")
"""


def run_sample(level: str = "info") -> str:
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE.format(level=level)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == ""
    return done.stderr


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_sample().splitlines()]


def test_every_line_is_json_with_time_level_service_and_context(lines: list[dict[str, Any]]) -> None:
    assert [line["event"] for line in lines] == ["started", "objects", "failed", "trouble with a socket"]
    assert [line["level"] for line in lines] == ["info", "info", "error", "warning"]
    for line in lines:
        assert (line["service"], line["request_id"], line["step"]) == ("scheduler", "r-1", 7)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["timestamp"])


def test_plain_values_are_kept(lines: list[dict[str, Any]]) -> None:
    started = lines[0]
    assert {key: started[key] for key in ("port", "path", "share", "nothing", "on")} == {
        "port": 50051,
        "path": "/models",
        "share": 0.5,
        "nothing": None,
        "on": True,
    }


def test_objects_are_logged_by_the_name_of_their_class(lines: list[dict[str, Any]]) -> None:
    objects = lines[1]
    assert objects["sequence"] == "NewSequence"
    assert objects["inside"] == ["GenerateRequest", {"deep": ["GenerateRequest", 2]}]
    assert objects["raw"] == "bytes"


def test_exceptions_are_structured_and_without_local_variables(lines: list[dict[str, Any]]) -> None:
    (exception,) = lines[2]["exception"]
    assert (exception["exc_type"], exception["exc_value"]) == ("TypeError", "object of type 'NewSequence' has no len()")
    assert [set(frame) for frame in exception["frames"]] == [{"filename", "lineno", "name"}]


def test_the_keys_of_a_sample_are_known_ones(lines: list[dict[str, Any]]) -> None:
    always = {"event", "level", "service", "timestamp", "request_id", "step"}
    assert set().union(*lines) == always | {
        "port", "path", "share", "nothing", "on", "sequence", "inside", "raw", "exception"
    }  # fmt: skip


@pytest.mark.parametrize("level", ["debug", "error"])
def test_the_level_is_kept_and_no_text_of_a_request_comes_out(level: str) -> None:
    text = run_sample(level)
    assert ("quiet" in text) == (level == "debug")
    assert ("started" in text) == (level == "debug")
    assert "SECRET" not in text


def test_a_terminal_gets_lines_for_people() -> None:
    main, terminal = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as reader:
        process = subprocess.Popen([sys.executable, "-c", SAMPLE.format(level="info")], stderr=terminal)
        os.close(terminal)
        text = read_terminal(reader.fileno())
        assert process.wait(timeout=120) == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.search(r"Z \[info +\] started +nothing=None on=True path=/models port=50051", plain)
    assert "TypeError: object of type 'NewSequence' has no len()" in plain
    assert "SECRET" not in plain


def read_terminal(descriptor: int) -> str:
    """All a terminal shows until its last writer is gone, which Linux reports as an input/output error."""
    chunks = []
    try:
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    except OSError:
        pass
    return b"".join(chunks).decode()
