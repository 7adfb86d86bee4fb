"""What the command line says of arguments that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from citybus.__main__ import main


@pytest.mark.parametrize(
    ("line", "complaint", "command"),
    [
        ("generate hi --tempratur 0", "unknown argument '--tempratur' (did you mean '--temperature'?)", "generate"),
        ("generate hi --zzzz=secret", "unknown argument '--zzzz'", "generate"),
        (
            "bench serve --api-key secret",
            "unknown argument '--api-key' (did you mean '--api-key-file'?)",
            "bench serve",
        ),
        ("policy sett x", "argument COMMAND: unknown 'sett' (did you mean 'set'?)", "policy"),
        ("serve --dtype=fp8", "argument --dtype: unknown 'fp8', expected one of auto, bfloat16, float32", "serve"),
        (
            "serve --executor-arg --num-threads=1",
            "argument --executor-arg: expected one argument, after an equals sign where it begins with a dash: "
            "--executor-arg=--...",
            "serve",
        ),
    ],
)
def test_a_complaint_is_one_line_that_names_the_command(
    line: str, complaint: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(line.split(), capsys) == f"citybus {command}: {complaint}; see 'citybus {command} --help'\n"


def test_a_misspelt_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complaint = "citybus: argument COMMAND: unknown 'stats' (did you mean 'status'?); see 'citybus --help'\n"
    assert said(["stats"], capsys) == complaint


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gone.json"
    assert said(["generate", "hi", "--json-schema", str(path)], capsys) == (
        f"citybus generate: argument --json-schema: cannot read {path}: No such file or directory; see "
        "'citybus generate --help'\n"
    )


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    return capsys.readouterr().err
