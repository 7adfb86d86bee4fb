"""What is remembered of an answer that is read over several calls."""

from __future__ import annotations

from citybus.reading import Reading
from citybus.v1 import generation_pb2 as pb


def test_an_end_that_is_told_again_adds_no_text() -> None:
    """The reader of several samples comes back for those that go on, and hears of the end of the others again: with the
    text that came with the end, such as that of an unfinished character."""
    reading = Reading(pb.GenerateRequest(samples=pb.SampleParams(n=2)))
    end = pb.Finish(reason=pb.FINISH_REASON_LENGTH)
    first = reading.take(pb.GenerateResponse(token_ids=[216], text="\ufffd", finish=end))
    assert first is not None and first.text == "\ufffd"
    assert list(reading.rest("some").next_indexes) == [1]
    assert reading.take(pb.GenerateResponse(first_index=1, text="\ufffd", finish=end)) is None
    assert reading.take(pb.GenerateResponse(sample=1, token_ids=[7], text="a", finish=end)) is not None
    assert len(reading.finishes) == 2
