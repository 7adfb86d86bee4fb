"""A step whose tokens a device is still computing, while the host begins the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from common.step import StepResult
from executor_svc.sequence import Row

_NS_A_MS = 1e6


class DeviceTime:
    """A moment of a device: when it has done all that it was given until now. A CPU, which is waited for, has none."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> None:
        """Return once it has come. From any thread; the others go on meanwhile. Raises what the device failed with."""
        if self._event is not None:
            self._event.synchronize()

    def ns_since(self, earlier: DeviceTime) -> int:
        """Nanoseconds between two moments that have come."""
        if self._event is None or earlier._event is None:
            return 0
        return max(0, int(_NS_A_MS * earlier._event.elapsed_time(self._event)))


class Transfer:
    """Token ids on their way from a device to the host, int64 [rows]; from a CPU they are there at once."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = tokens
        self._host = tokens
        if tokens.device.type == "cuda":
            self._host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            self._host.copy_(tokens, non_blocking=True)
        self.arrived = DeviceTime(tokens.device)

    def token_ids(self) -> list[int]:
        """Waits for them. Raises what the device failed with."""
        self.arrived.wait()
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
        self.known: Future[StepResult] = Future()
        self.known.set_running_or_notify_cancel()  # who does not want it any more must not keep others from it
        self._before = before
        self._end = end

    def wait(self) -> None:
        """As `common.step_executor.PendingStep.wait`."""
        with contextlib.suppress(Exception):  # of the device, which is the result's error
            self.transfer.arrived.wait()

    def result(self) -> StepResult:
        """As `common.step_executor.PendingStep.result`."""
        if not self.known.done():
            error = None if self._before is None else self._before.result().error
            self._before = None
            self.known.set_result(self._end(error))
        return self.known.result()

    def end_before(self) -> None:
        """End the step before, and not this one."""
        if self._before is not None:
            self._before.result()
