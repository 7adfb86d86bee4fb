"""The samples of one request, as one stream for one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from common.errors import CitybusError
from scheduler_svc.output_stream import Delta, OutputStream


class SampleStreams:
    """Gives the news of all `parts` as they come, in turn where several have some."""

    def __init__(self, parts: Sequence[OutputStream]) -> None:
        self._open = deque(parts)
        self._news = asyncio.Event()
        for part in parts:
            part.when_news(self._news.set)

    async def next(self) -> Delta:
        """What has gathered of one part, as `OutputStream.next`; not to be called after the last outcome."""
        while True:
            for _ in range(len(self._open)):
                self._open.rotate(-1)
                if self._open[-1].has_news:
                    return await self._take(self._open[-1])
            self._news.clear()
            await self._news.wait()

    def fail(self, error: CitybusError) -> None:
        """Every part that has not ended ends with `error`."""
        for part in self._open:
            part.fail(error)

    async def _take(self, part: OutputStream) -> Delta:
        delta = await part.next()
        if delta.outcome is not None:
            self._open.remove(part)
        return delta
