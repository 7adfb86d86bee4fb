"""What every test has."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=100, stateful_step_count=60)
settings.register_profile("deep", deadline=None, max_examples=2_000, stateful_step_count=100)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prompts", help="ask the real model the questions of this file (JSON lines, as in MT-Bench)")
