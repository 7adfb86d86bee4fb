"""The container files name options that the services have; what only an engine can tell is in lifecycle.py."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from executor_svc.config import Config as ExecutorConfig
from scheduler_svc.config import Config as SchedulerConfig

ROOT = Path(__file__).parents[2]
COMPOSE = ("compose.yaml", "compose.nvidia.yaml", "compose.standby.yaml")
FILES = (*COMPOSE, "deploy/executor.Dockerfile", "deploy/scheduler.Dockerfile")
TEXT = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in FILES)


@pytest.mark.parametrize(("prefix", "config"), [("EXECUTOR", ExecutorConfig), ("SCHEDULER", SchedulerConfig)])
def test_variables_are_options_of_the_service(prefix: str, config: type) -> None:
    named = {name.lower() for name in re.findall(rf"CITYBUS_{prefix}_(\w+)", TEXT)}
    assert {"model", "listen"} <= named
    assert named <= {field.name for field in dataclasses.fields(config)}


def test_a_stop_outlasts_the_drain() -> None:
    graces = [float(seconds) for seconds in re.findall(r"stop_grace_period: \$\{CITYBUS_STOP_GRACE:-(\d+)s\}", TEXT)]
    assert len(graces) == 2
    for config in (ExecutorConfig(model=Path("any")), SchedulerConfig(model=Path("any"))):
        assert min(graces) >= config.drain_grace + 5


def test_every_image_leaves_root_at_its_end() -> None:
    for stage in re.split(r"^FROM ", TEXT, flags=re.MULTILINE):
        if "ENTRYPOINT" in stage:
            assert re.findall(r"^USER (.*)$", stage, flags=re.MULTILINE)[-1] == "10001:10001"
