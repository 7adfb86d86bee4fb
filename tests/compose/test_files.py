"""The container files name options that the services have; what only an engine can tell is in lifecycle.py."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from common.config import load
from executor_svc.__main__ import check_settings as check_executor
from executor_svc.config import Config as ExecutorConfig
from scheduler_svc.config import Config as SchedulerConfig
from scheduler_svc.doors import check_doors

ROOT = Path(__file__).parents[2]
COMPOSE = ("compose.yaml", "compose.nvidia.yaml", "compose.standby.yaml")
FILES = (*COMPOSE, "deploy/executor.Dockerfile", "deploy/scheduler.Dockerfile")
TEXT = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in FILES)


@pytest.mark.parametrize(("prefix", "config"), [("EXECUTOR", ExecutorConfig), ("SCHEDULER", SchedulerConfig)])
def test_variables_are_options_of_the_service(prefix: str, config: type) -> None:
    named = {name.lower() for name in re.findall(rf"CITYBUS_{prefix}_(\w+)", TEXT)}
    assert {"model", "listen"} <= named
    assert named <= {field.name for field in dataclasses.fields(config)}


def environment(prefix: str, folder: Path) -> dict[str, str]:
    """What the files set for a service, with paths in `folder` and a free port."""
    found = re.findall(rf"(CITYBUS_{prefix}_\w+)(?:=|: )(\S+)", TEXT.replace("${CITYBUS_INSECURE_BIND:-true}", "true"))
    variables = {name: re.sub(r"^/", f"{folder}/", re.sub(r":\d+$", ":0", value)) for name, value in found}
    return {name: value for name, value in variables.items() if name != "CITYBUS_EXECUTOR_DEVICE"}


def test_the_doors_of_the_containers_are_open_to_each_other_alone(tmp_path: Path) -> None:
    executor = environment("EXECUTOR", tmp_path)
    scheduler = environment("SCHEDULER", tmp_path)
    assert executor["CITYBUS_EXECUTOR_LISTEN"] == scheduler["CITYBUS_SCHEDULER_LISTEN"] == "0.0.0.0:0"
    executor_settings = load(ExecutorConfig, [], executor, prog="executor", env_prefix="CITYBUS_EXECUTOR")
    settings = load(SchedulerConfig, [], scheduler, prog="scheduler", env_prefix="CITYBUS_SCHEDULER")
    check_executor(executor_settings)
    check_doors(settings, {})
    assert executor_settings.token_file == settings.executor_token_file
    assert not executor_settings.insecure_bind
    assert settings.insecure_bind, "its ports are published on the host's loopback address only"
    assert re.findall(r"- \$\{CITYBUS_PUBLISH(?:_ADMIN)?:-([\d.]+):", TEXT) == ["127.0.0.1"] * 4
    for made in (settings.executor_token_file, settings.admin_token_file):
        assert made is not None
        assert made.stat().st_mode & 0o777 == 0o600


def test_a_stop_outlasts_the_drain() -> None:
    graces = [float(seconds) for seconds in re.findall(r"stop_grace_period: \$\{CITYBUS_STOP_GRACE:-(\d+)s\}", TEXT)]
    assert len(graces) == 2
    for config in (ExecutorConfig(model=Path("any")), SchedulerConfig(model=Path("any"))):
        assert min(graces) >= config.drain_grace + 5


def test_every_image_leaves_root_at_its_end() -> None:
    for stage in re.split(r"^FROM ", TEXT, flags=re.MULTILINE):
        if "ENTRYPOINT" in stage:
            assert re.findall(r"^USER (.*)$", stage, flags=re.MULTILINE)[-1] == "10001:10001"
