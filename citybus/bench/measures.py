"""What a load measured: latencies, throughput and goodput within a window of steady state."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from citybus.bench.distribution import Distribution
from citybus.bench.load import Record

STEADY_LATENCIES = 5.0
"""A window of steady state is as long as this many median end-to-end latencies, or longer."""


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service level objectives, in seconds; None is no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return self.ttft_s is not None or self.tpot_s is not None

    def met_by(self, record: Record) -> bool:
        """Whether the answer came whole, its first token and its pace in time: just in time is in time."""
        if record.failure is not None:
            return False
        pace = tpot(record)
        first = self.ttft_s is None or ttft(record) <= self.ttft_s
        return first and (self.tpot_s is None or pace is None or pace <= self.tpot_s)


@dataclass(frozen=True, slots=True)
class Window:
    """From `start` up to but not including `end`, in seconds."""

    start: float
    end: float

    @property
    def length(self) -> float:
        """In seconds."""
        return self.end - self.start

    def holds(self, moment: float) -> bool:
        """Whether the moment lies within."""
        return self.start <= moment < self.end


@dataclass(frozen=True, slots=True)
class Summary:
    """The measures of one load. Times are in seconds; distributions are None where nothing was measured.

    `sent` requests were sent in the window, of which `good` were answered within the objectives; None: there are no
    objectives, and so no goodput. Rates count what came in the window: tokens of whole answers, prompts whose first
    token came, answers that ended.
    """

    window: Window
    sent: int
    good: int | None
    answers_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Distribution | None
    inter_token_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    normalised_s: Distribution | None
    objectives: Objectives
    failures: dict[str, int]

    @property
    def goodput_per_s(self) -> float | None:
        """Requests a second, sent in the window, that met the objectives."""
        return None if self.good is None else self.good / self.window.length

    @property
    def good_share(self) -> float | None:
        """Of the requests sent in the window, the share that met the objectives."""
        return None if self.good is None else self.good / self.sent if self.sent else 0.0


def ttft(record: Record) -> float:
    """Time to the first token, of an answer that has one."""
    return record.token_times[0] - record.sent


def e2e(record: Record) -> float:
    """Time to the last token, of an answer that has one."""
    return record.token_times[-1] - record.sent


def tpot(record: Record) -> float | None:
    """Time per output token after the first: (E2E - TTFT) / (output tokens - 1); None for an answer of one token."""
    count = len(record.token_times)
    return (e2e(record) - ttft(record)) / (count - 1) if count > 1 else None


def normalised(record: Record) -> float:
    """E2E latency per output token."""
    return e2e(record) / len(record.token_times)


def inter_token(record: Record) -> list[float]:
    """The gaps between neighbouring tokens; 0 within one message."""
    return [after - before for before, after in itertools.pairwise(record.token_times)]


def steady_window(records: Sequence[Record], warm_up: float, cool_down: float) -> Window:
    """The time in which requests were sent, without the first `warm_up` and the last `cool_down` share of it.

    What comes after the last request was sent is left out: the load falls then. Where all were sent at once there is
    no steady state, and the window is all the time from the first request to the last answer.
    """
    first = min(record.planned for record in records)
    last = max(record.planned for record in records)
    sending = last - first
    if sending <= 0:
        end = max(record.ended for record in records)
        return Window(first, end + 1e-9)  # the last token counts
    return Window(first + warm_up * sending, last - cool_down * sending)


def unsteady(summary: Summary, records: Sequence[Record]) -> str | None:
    """Why the window is no steady state; None where it is, or where all were sent at once.

    The load needs about one end-to-end latency to build up, and answers lag behind requests by as much.
    """
    at_once = len({record.planned for record in records}) == 1
    if at_once or summary.e2e_s is None or summary.window.length >= STEADY_LATENCIES * summary.e2e_s.p50:
        return None
    return (
        f"no steady state: the window is {summary.window.length:.1f} s, less than {STEADY_LATENCIES:g} times "
        "the median end-to-end latency; send more requests"
    )


def summarise(records: Sequence[Record], window: Window, objectives: Objectives) -> Summary:
    """The measures of the requests sent, and of the tokens that came, in the window."""
    sent = [record for record in records if window.holds(record.planned)]
    whole = [record for record in sent if record.failure is None]
    answered = [record for record in records if record.failure is None]
    first_tokens = [record for record in answered if window.holds(record.token_times[0])]
    paces = [pace for record in whole if (pace := tpot(record)) is not None]
    return Summary(
        window=window,
        sent=len(sent),
        good=sum(map(objectives.met_by, sent)) if objectives.given else None,
        answers_per_s=sum(window.holds(record.ended) for record in answered) / window.length,
        input_tokens_per_s=sum(record.call.num_prompt for record in first_tokens) / window.length,
        output_tokens_per_s=sum(window.holds(time) for record in answered for time in record.token_times)
        / window.length,
        ttft_s=Distribution.of([ttft(record) for record in whole]),
        inter_token_s=Distribution.of([gap for record in whole for gap in inter_token(record)]),
        tpot_s=Distribution.of(paces),
        e2e_s=Distribution.of([e2e(record) for record in whole]),
        normalised_s=Distribution.of([normalised(record) for record in whole]),
        objectives=objectives,
        failures=dict(Counter(record.failure for record in records if record.failure is not None)),
    )
