"""A step whose tokens a device is still computing, while the host begins the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from common.step import StepResult
from executor_svc.sequence import Row


class Transfer:
    """Token ids on their way from a device to the host, int64 [rows]; from a CPU they are there at once."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens
        self._host = tokens
        self._arrived: torch.cuda.Event | None = None
        if tokens.device.type == "cuda":
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
            self._arrived = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._arrived.record()

    def wait(self) -> None:
        """Return once the host has them. From any thread; the others go on meanwhile."""
        if self._arrived is not None:
            self._arrived.synchronize()

    def token_ids(self) -> list[int]:
        """Waits for them. Raises what the device failed with."""
        self.wait()
        token_ids: list[int] = self._host.tolist()
        return token_ids


class PendingStep:
    """`common.step_executor.PendingStep` of the engine.

    `rows` are those that draw, one token each, and `transfer` has what they drew. `before` is the step that was
    pending when this one began: it ends first. `end` makes the result; it is given the error of the step before, if
    that failed.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        transfer: Transfer,
        before: PendingStep | None,
        end: Callable[[str | None], StepResult],
    ) -> None:
        self.rows = rows
        self.transfer = transfer
        self._before = before
        self._end = end
        self._result: StepResult | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the engine has its tokens."""
        return self._result is not None

    def wait(self) -> None:
        """As `common.step_executor.PendingStep.wait`."""
        self.transfer.wait()

    def result(self) -> StepResult:
        """As `common.step_executor.PendingStep.result`."""
        if self._result is None:
            error = None if self._before is None else self._before.result().error
            self._before = None
            self._result = self._end(error)
        return self._result

    def end_before(self) -> None:
        """End the step before, and not this one."""
        if self._before is not None:
            self._before.result()
