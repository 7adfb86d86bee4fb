"""What runs the plans of a session."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

from common.resident import ResidentPage
from common.step import ExecutorInfo, StepPlan, StepResult


class StepExecutor(Protocol):
    """What `executor_svc.server` puts on the wire: the real engine, and the fake one in tests.

    Calls come from one thread at a time.
    """

    def describe(self) -> ExecutorInfo:
        """Facts and capacity."""

    def open(self, epoch: bytes, resume: bool) -> int:
        """Start a session; returns its term, larger than every one before.

        Drops everything resident unless `resume`. Raises `StaleTerm` where `epoch` is not this executor's.
        """

    def step(self, plan: StepPlan) -> StepResult:
        """Apply and compute one plan.

        Raises `StaleTerm` for a plan of an older term and `InvalidPlan` for one that does not fit what is resident;
        a failure of the computation itself is a result with `error`.
        """

    def resident(self, page_size: int) -> Iterator[ResidentPage]:
        """What is resident, at least one page, each with at most `page_size` sequences and cached blocks."""


class PendingStep(Protocol):
    """A step that a device is computing. `known` gets its result, on the executor's thread, when that is asked for."""

    known: Future[StepResult]

    def wait(self) -> None:
        """Return once `result` would not wait for the device. It may be called from any thread."""

    def result(self) -> StepResult:
        """As `StepExecutor.step` returns it; waits for it, and for the step before."""


@runtime_checkable
class PipelinedExecutor(StepExecutor, Protocol):
    """One that can begin a step before it knows the tokens of the one before."""

    def begin(self, plan: StepPlan) -> StepResult | PendingStep:
        """As `step`, without waiting for a device: the result where it is known already."""
