"""Configuration: precedence, types, one clear line for every mistake, and a complete --help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from common.config import REQUIRED, load, option
from common.errors import StartupError


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Drives the bus."""

    model: Path = option(REQUIRED, "model folder")
    seats: int = option(8, "most sequences in the batch", unit="sequences")
    grace: float = option(30.0, "time to finish, 100% of it", unit="seconds")
    time_limit: float | None = option(None, "longest request", unit="seconds")
    warm: bool = option(True, "warm up before serving")
    policy: str = option("fcfs", "who boards next", choices=("fcfs", "priority"))
    name: str = option("", "name shown to clients")
    cache: Path | None = option(Path("cache"), "cache folder")

    def __post_init__(self) -> None:
        if self.seats < 1:
            raise ValueError("--seats must be at least 1")


def read(*argv: str, env: dict[str, str] | None = None, file: Path | None = None) -> Config:
    given = ["--config", str(file)] if file else []
    return load(Config, [*given, *argv], env or {}, prog="bus", env_prefix="BUS")


def refused(*argv: str, env: dict[str, str] | None = None, file: Path | None = None) -> str:
    with pytest.raises(StartupError) as error:
        read(*argv, env=env, file=file)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "bus.toml"


def test_defaults_need_only_what_is_required() -> None:
    assert read("--model", "m") == Config(model=Path("m"))


def test_flags_win_over_environment_over_file_over_defaults(toml: Path) -> None:
    toml.write_text('model = "file"\nseats = 2\ngrace = 2\npolicy = "priority"\n')
    config = read("--seats", "4", env={"BUS_SEATS": "3", "BUS_GRACE": "3.5", "SEATS": "9"}, file=toml)
    assert config == Config(model=Path("file"), seats=4, grace=3.5, policy="priority")


def test_the_file_may_be_named_in_the_environment(toml: Path) -> None:
    toml.write_text('model = "file"\n')
    assert read(env={"BUS_CONFIG": str(toml)}).model == Path("file")
    other = toml.with_name("other.toml")
    other.write_text('model = "other"\n')
    assert read(env={"BUS_CONFIG": str(toml)}, file=other).model == Path("other")


@pytest.mark.parametrize(
    ("flag", "field", "value"),
    [
        ("--seats=-0016", "seats", -16),
        ("--grace=1e2", "grace", 100.0),
        ("--time-limit=2", "time_limit", 2.0),
        ("--time-limit=none", "time_limit", None),
        ("--warm", "warm", True),
        ("--no-warm", "warm", False),
        ("--policy=priority", "policy", "priority"),
        ("--name=", "name", ""),
        ("--name=none", "name", "none"),
        ("--cache=none", "cache", None),
        ("--cache=/a b", "cache", Path("/a b")),
    ],
)
def test_every_type_as_a_flag(flag: str, field: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Config, "__post_init__", lambda _: None)
    got = getattr(read("--model=m", flag), field)
    assert (type(got), got) == (type(value), value) or (isinstance(value, Path) and got == value)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("ON", True), ("no", False), ("0", False)])
def test_booleans_in_the_environment(text: str, value: bool) -> None:
    assert read("--model=m", env={"BUS_WARM": text}).warm is value


def test_every_type_in_a_file(toml: Path) -> None:
    toml.write_text(
        'model = "m"\nseats = 3\ngrace = 1\ntime_limit = 0.5\nwarm = false\npolicy = "priority"\nname = "n"\n'
        'cache = "none"\n'
    )
    assert read(file=toml) == Config(
        model=Path("m"), seats=3, grace=1.0, time_limit=0.5, warm=False, policy="priority", name="n", cache=None
    )
    assert type(read(file=toml).grace) is float


def test_a_missing_required_option_is_named() -> None:
    assert refused() == "--model is missing: model folder (or set BUS_MODEL)"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--seats=two", "--seats: expected an integer, got 'two'"),
        ("--seats=1.5", "--seats: expected an integer, got '1.5'"),
        ("--seats=", "--seats: expected an integer, got ''"),
        ("--seats=none", "--seats: expected an integer, got 'none'"),
        ("--grace=nan", "--grace: expected a number, got nan"),
        ("--grace=inf", "--grace: expected a number, got inf"),
        ("--time-limit=soon", "--time-limit: expected a number or none, got 'soon'"),
        ("--policy=lifo", "--policy: expected one of fcfs, priority, got 'lifo'"),
        ("--seats", "argument --seats: expected one argument"),
        ("--polcy=fcfs", "unknown argument '--polcy'; did you mean '--policy'?"),
        ("--pol=fcfs", "unknown argument '--pol'; did you mean '--policy'?"),
        ("--nope", "unknown argument '--nope'; --help lists every option"),
        ("--zzzz", "unknown argument '--zzzz'; --help lists every option"),
        ("stray", "unknown argument 'stray'; --help lists every option"),
        ("--seats=0", "--seats must be at least 1"),
    ],
)
def test_a_wrong_flag_is_one_clear_line(flag: str, message: str) -> None:
    assert refused("--model=m", flag) == message


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("BUS_SEATS", "x", "BUS_SEATS: expected an integer, got 'x'"),
        ("BUS_WARM", "maybe", "BUS_WARM: expected true or false, got 'maybe'"),
        ("BUS_SEAT", "1", "unknown environment variable BUS_SEAT; did you mean 'BUS_SEATS'?"),
        ("BUS_NOPE", "1", "unknown environment variable BUS_NOPE; --help lists every option"),
    ],
)
def test_a_wrong_variable_is_one_clear_line(variable: str, text: str, message: str) -> None:
    assert refused("--model=m", env={variable: text}) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seets = 1", "unknown option 'seets'; did you mean 'seats'?"),
        ("time-limit = 1", "unknown option 'time-limit'; did you mean 'time_limit'?"),
        ("config = 'x'", "unknown option 'config'; --help lists every option"),
        ("[bus]\nseats = 1", "unknown option 'bus'; --help lists every option"),
        ('seats = "1"', "seats: expected an integer, got '1'"),
        ("seats = true", "seats: expected an integer, got True"),
        ("seats = 1.0", "seats: expected an integer, got 1.0"),
        ("grace = true", "grace: expected a number, got True"),
        ("grace = inf", "grace: expected a number, got inf"),
        ("warm = 1", "warm: expected true or false, got 1"),
        ("warm = 'yes'", "warm: expected true or false, got 'yes'"),
        ("model = 1", "model: expected a path, got 1"),
        ("name = [1]", "name: expected a text, got [1]"),
        ("policy = 'lifo'", "policy: expected one of fcfs, priority, got 'lifo'"),
    ],
)
def test_a_wrong_file_is_one_clear_line(toml: Path, line: str, message: str) -> None:
    toml.write_text(line)
    assert refused("--model=m", file=toml) == f"{toml}: {message}"


def test_a_file_that_cannot_be_read(toml: Path) -> None:
    assert refused(file=toml) == f"cannot read the configuration file {toml}: No such file or directory"
    toml.mkdir()
    assert refused(file=toml) == f"cannot read the configuration file {toml}: Is a directory"


@pytest.mark.parametrize("content", [b"seats = ", b"\xff\xfe", b"seats = 1\nseats = 2"])
def test_a_file_that_is_not_toml(toml: Path, content: bytes) -> None:
    toml.write_bytes(content)
    assert refused(file=toml).startswith(f"{toml} is not a TOML file: ")


def test_help_lists_every_option_with_unit_default_and_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        read("--help")
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Drives the bus." in text
    for expected in (
        "--config PATH TOML file with any of these options (default: none; BUS_CONFIG)",
        "--model PATH model folder (required; BUS_MODEL)",
        "--seats INT most sequences in the batch, in sequences (default: 8; BUS_SEATS)",
        "--grace FLOAT time to finish, 100% of it, in seconds (default: 30.0; BUS_GRACE)",
        "--time-limit FLOAT longest request, in seconds (default: none; BUS_TIME_LIMIT)",
        "--warm, --no-warm warm up before serving (default: true; BUS_WARM)",
        "--policy {fcfs,priority} who boards next (default: fcfs; BUS_POLICY)",
        '--name STR name shown to clients (default: ""; BUS_NAME)',
        "--cache PATH cache folder (default: cache; BUS_CACHE)",
    ):
        assert expected in text


def test_a_type_no_option_can_have_is_a_fault_of_the_programmer() -> None:
    @dataclass(frozen=True)
    class Wrong:
        sizes: tuple = option((), "sizes")  # type: ignore[type-arg]

    with pytest.raises(TypeError, match="sizes: an option cannot be"):
        load(Wrong, [], {}, prog="bus", env_prefix="BUS")
