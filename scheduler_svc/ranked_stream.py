"""The best of several samples, as one stream for one reader: told when all have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from common.errors import CitybusError
from scheduler_svc.output_stream import Delta
from scheduler_svc.sample_streams import SampleStreams


@dataclass(slots=True)
class _Answer:
    """A sample as far as it has come."""

    sample: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    last: Delta | None = None

    @property
    def rank(self) -> tuple[float, int]:
        """The best has the least: the highest score, of equals the first sample."""
        score = self.last.outcome.score if self.last and self.last.outcome else None
        return (float("inf") if score is None else -score, self.sample)


class RankedStream:
    """Gives the best of the samples in `samples`, one whole answer after the other, the best first.

    `starts` says of each answer how many of its tokens the reader has.
    """

    def __init__(self, samples: SampleStreams, num_samples: int, starts: Sequence[int]) -> None:
        self._samples = samples
        self._answers = [_Answer(index) for index in range(num_samples)]
        self._starts = starts
        self._told: Iterator[Delta] | None = None

    async def next(self) -> Delta:
        """The next best answer; not to be called more often than there are `starts`. Raises `CitybusError`."""
        if self._told is None:
            await self._gather()
            best = sorted(self._answers, key=lambda answer: answer.rank)
            ranked = zip(best, range(len(self._starts)), self._starts, strict=False)
            self._told = iter([_whole(*each) for each in ranked])
        return next(self._told)

    def fail(self, error: CitybusError) -> None:
        """Nothing more will come."""
        self._samples.fail(error)

    async def _gather(self) -> None:
        while any(answer.last is None for answer in self._answers):
            delta = await self._samples.next()
            answer = self._answers[delta.sample]
            answer.token_ids.extend(delta.token_ids)
            answer.text += delta.text
            if delta.outcome is not None:
                answer.last = delta


def _whole(answer: _Answer, place: int, start: int) -> Delta:
    """The answer from token number `start` on; its text comes with its last token."""
    assert answer.last is not None
    text = answer.text if start < len(answer.token_ids) or not start else ""
    return answer.last._replace(first_index=start, token_ids=answer.token_ids[start:], text=text, told_as=place)
