"""Every measure, with its exact value on a timeline made by hand."""

from __future__ import annotations

import pytest

from citybus.bench import measures
from citybus.bench.distribution import Distribution, percentile
from citybus.bench.measures import Objectives, Window, steady_window, summarise, unsteady
from citybus.bench.server import summary_of
from tests.citybus.bench.timelines import reading, record


def test_percentiles_lie_between_their_neighbours() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, q) for q in (0, 50, 90, 100)] == pytest.approx([1.0, 2.5, 3.7, 4.0])
    assert percentile([7.0], 99) == 7.0
    assert Distribution.of(values) == Distribution(4, 2.5, 2.5, pytest.approx(3.7), pytest.approx(3.97))
    assert Distribution.of([]) is None


def test_latencies_of_one_answer() -> None:
    """Sent at 1, tokens at 1.5, 1.6, 1.6 (one message) and 2.0."""
    one = record(0.9, 1.5, 1.6, 1.6, 2.0, sent=1.0)
    assert measures.ttft(one) == 0.5
    assert measures.e2e(one) == 1.0
    assert measures.tpot(one) == pytest.approx(0.5 / 3)
    assert measures.normalised(one) == 0.25
    assert measures.inter_token(one) == pytest.approx([0.1, 0.0, 0.4])


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    one = record(0.0, 2.0)
    assert measures.tpot(one) is None
    assert Objectives(ttft_s=2.0, tpot_s=0.001).met_by(one)


def test_just_in_time_is_in_time() -> None:
    one = record(0.0, 0.5, 0.75, 1.0)  # first after 0.5, then 0.25 a token
    assert Objectives(ttft_s=0.5, tpot_s=0.25).met_by(one)
    assert not Objectives(ttft_s=0.4999, tpot_s=0.25).met_by(one)
    assert not Objectives(ttft_s=0.5, tpot_s=0.2499).met_by(one)
    assert Objectives().met_by(one)
    assert not Objectives().met_by(record(0.0, failure="UNAVAILABLE"))


def test_the_window_leaves_out_the_beginning_and_the_end_of_the_sending() -> None:
    records = [record(float(at), at + 50.0) for at in range(11)]
    assert steady_window(records, 0.1, 0.2) == Window(1.0, 8.0)
    assert steady_window(records, 0.0, 0.0) == Window(0.0, 10.0)


def test_where_all_is_sent_at_once_the_window_is_everything() -> None:
    window = steady_window([record(0.0, 1.0), record(0.0, 4.0)], 0.1, 0.1)
    assert (window.start, window.end) == (0.0, pytest.approx(4.0))
    assert window.holds(4.0), "the last token counts"


def test_a_window_holds_its_start_and_not_its_end() -> None:
    window = Window(1.0, 3.0)
    assert [window.holds(moment) for moment in (0.999, 1.0, 2.999, 3.0)] == [False, True, True, False]
    assert window.length == 2.0


def test_summary_counts_what_was_sent_and_what_came_in_the_window() -> None:
    records = [
        record(0.0, 1.5, 2.5, 11.0, prompt=100),  # sent before it: its tokens at 2.5 counts, its latency does not
        record(2.0, 3.0, 4.0, prompt=20),  # first after 1, 1 a token: good
        record(4.0, 6.5, 7.0, prompt=30),  # first after 2.5: late
        record(5.0, 5.1, failure="UNAVAILABLE"),
        record(6.0, 7.0, 12.0, prompt=40),  # 5 a token: late; its last token comes after it
        record(6.0, failure="SHORT_ANSWER"),
        record(10.0, 10.5, prompt=50),  # sent after it
    ]
    found = summarise(records, Window(2.0, 10.0), Objectives(ttft_s=2.0, tpot_s=1.0))
    assert (found.sent, found.good, found.good_share, found.goodput_per_s) == (5, 1, 0.2, 1 / 8)
    without = summarise(records, Window(2.0, 10.0), Objectives())
    assert (without.sent, without.good, without.good_share, without.goodput_per_s) == (5, None, None, None)
    assert found.answers_per_s == 2 / 8
    assert found.output_tokens_per_s == (1 + 2 + 2 + 1) / 8
    assert found.input_tokens_per_s == (20 + 30 + 40) / 8
    assert found.failures == {"UNAVAILABLE": 1, "SHORT_ANSWER": 1}
    assert found.ttft_s == Distribution.of([1.0, 2.5, 1.0])
    assert found.e2e_s == Distribution.of([2.0, 3.0, 6.0])
    assert found.tpot_s == Distribution.of([1.0, 0.5, 5.0])
    assert found.normalised_s == Distribution.of([1.0, 1.5, 3.0])
    assert found.inter_token_s == Distribution.of([1.0, 0.5, 5.0])


def test_a_window_is_steady_from_five_median_latencies_on() -> None:
    records = [record(float(at), at + 2.0) for at in range(11)]
    steady = summarise(records, Window(0.0, 10.0), Objectives())
    short = summarise(records, Window(0.0, 9.9), Objectives())
    assert unsteady(steady, records) is None
    assert (unsteady(short, records) or "").startswith("no steady state: the window is 9.9 s, less than 5 times")
    at_once = [record(0.0, 1.0), record(0.0, 4.0)]
    assert unsteady(summarise(at_once, Window(0.0, 4.1), Objectives()), at_once) is None


def test_nothing_in_the_window_is_nothing_measured() -> None:
    found = summarise([record(0.0, 1.0)], Window(5.0, 6.0), Objectives(ttft_s=1.0))
    assert (found.sent, found.good_share, found.ttft_s, found.output_tokens_per_s) == (0, 0.0, None, 0.0)


def test_server_readings_within_the_window() -> None:
    """Of 64 + 192 reserved slots 32 + 160 hold tokens; of 2 + 4 reserved seats 1 + 2 are taken."""
    totals = ({"prompt_tokens": 100, "cached_tokens": 10}, {"prompt_tokens": 300, "cached_tokens": 60})
    readings = [
        reading(0.0, 9, 9, tokens_held=1, slots_reserved=1000, preemptions=1),
        reading(1.0, 1, 4, tokens_held=32, slots_reserved=64, seats_reserved=2, preemptions=1, **totals[0]),
        reading(2.0, 2, 0, tokens_held=160, slots_reserved=192, seats_reserved=4, preemptions=4, **totals[1]),
        reading(3.0, 9, 9),
    ]
    found = summary_of(readings, Window(1.0, 3.0))
    assert found is not None
    assert (found.readings, found.kv_utilisation, found.idle_seats) == (2, 0.75, 0.5)
    assert (found.hit_rate, found.preemptions) == (0.25, 3)
    assert (found.running, found.most_running, found.waiting, found.most_waiting) == (1.5, 2, 2.0, 4)


def test_an_idle_server_has_no_shares() -> None:
    found = summary_of([reading(1.0)], Window(1.0, 3.0))
    assert found is not None
    assert (found.kv_utilisation, found.idle_seats, found.hit_rate) == (None, None, None)
    assert summary_of([], Window(1.0, 3.0)) is None
