"""What every test has."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=200, stateful_step_count=60)
settings.register_profile("deep", deadline=None, max_examples=2_000, stateful_step_count=100)
settings.load_profile("default")
