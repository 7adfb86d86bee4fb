"""What a grammar allows after the tokens of an answer, and that one that cannot go on harms nobody else."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from common.grammar import Grammar, GrammarKind
from common.matching import GrammarError
from common.step import FailedSequence, InvalidPlan, NewSequence, Sampling, ScheduledSequence
from executor_svc.batch import build_masks
from executor_svc.constraints import Constraint, Constraints, Mask
from executor_svc.engine import Engine
from executor_svc.sequence import HeldSequence, Row
from tests.checkpoints import EOS, MERGED, VOCAB_SIZE, write_tiny
from tests.executor.driver import GREEDY, Session

THE = MERGED["the"]
PROMPT = (1, 2, 3)


@pytest.fixture(scope="module")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> Constraints:
    return Constraints(write_tiny(tmp_path_factory.mktemp("model") / "tiny"), VOCAB_SIZE, 2)


def regex(source: str, *ends: int) -> Grammar:
    return Grammar(GrammarKind.REGEX, source, ends or (EOS,))


def mask_of(constraint: Constraint) -> Mask | None:
    return constraint.mask(time.monotonic() + 10)


def allowed(constraint: Constraint) -> set[int]:
    mask = mask_of(constraint)
    assert mask is not None
    return {token for token in range(VOCAB_SIZE) if mask[token // 32] >> token % 32 & 1}


def test_an_end_token_may_come_where_the_answer_is_complete_and_only_there(constraints: Constraints) -> None:
    constraint = constraints.begin(regex("ab?"), ())
    assert allowed(constraint) == {ord("a")}
    assert constraint.advance(ord("a")) is None
    assert allowed(constraint) == {ord("b"), EOS}
    assert constraint.advance(ord("b")) is None
    assert allowed(constraint) == {EOS}
    assert constraint.advance(EOS) is None
    assert constraint.advance(EOS) is None


def test_a_token_is_all_of_its_bytes(constraints: Constraints) -> None:
    assert allowed(constraints.begin(regex("(the|to|q)(y| t)"), ())) == {ord("t"), ord("q"), MERGED["th"], THE}
    assert allowed(constraints.begin(regex("(the|to|q)(y| t)"), (THE,))) == {ord("y"), ord(" "), MERGED["Ġt"]}
    assert allowed(constraints.begin(regex("é"), ())) == {0xC3}
    assert allowed(constraints.begin(regex("é"), (0xC3,))) == {0xA9}


def test_where_only_one_text_can_follow_it_comes_in_the_tokens_that_the_model_knows_it_by(
    constraints: Constraints,
) -> None:
    assert allowed(constraints.begin(regex("the(y| t)"), ())) == {THE}
    assert allowed(constraints.begin(regex("the(y| t)"), (ord("t"),))) == {ord("h")}


def test_control_tokens_are_no_text_and_any_token_can_be_an_end(constraints: Constraints) -> None:
    """The end may also be a token that the text has: then it is allowed for either reason."""
    anything = allowed(constraints.begin(regex(r"[ -~]*", 5, ord("x")), ()))
    assert anything == {*range(32, 127), *MERGED.values(), 5}
    assert allowed(constraints.begin(regex("a", 5, ord("x")), (ord("a"),))) == {5, ord("x")}
    assert EOS not in anything


def test_a_state_is_a_function_of_the_tokens(constraints: Constraints) -> None:
    """However they came: one by one, or with the sequence that enters again."""
    schema = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object","required":["then"]}', (EOS,))
    text = [*b'{"', THE, *b'n": [1, "x"]}']
    stepwise = constraints.begin(schema, ())
    for count, token in enumerate(text):
        assert allowed(stepwise) == allowed(constraints.begin(schema, text[:count]))
        assert stepwise.advance(token) is None
    assert EOS in allowed(stepwise)
    assert allowed(constraints.begin(schema, [*text, EOS])) == allowed(stepwise)


@pytest.mark.parametrize(
    ("grammar", "answer", "words"),
    [
        (regex("(a"), b"", "unclosed group"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"$ref":"#"}', (EOS,)), b"", "no text of this form"),
        (Grammar(GrammarKind.JSON_SCHEMA, "5", (EOS,)), b"", ""),
        (Grammar(GrammarKind.LARK, "start: nothing", (EOS,)), b"", "nothing"),
        (regex("abc"), b"ax", ""),
    ],
)
def test_what_cannot_go_on_says_why_and_goes_on_saying_it(
    constraints: Constraints, grammar: Grammar, answer: bytes, words: str
) -> None:
    constraint = constraints.begin(grammar, answer)
    assert mask_of(constraint) is None
    error = constraint.advance(5)
    assert error and words in error and "\n" not in error
    assert mask_of(constraint) is None
    assert constraint.advance(6) == error


class Panic(BaseException):
    """What a fault inside of the library is raised as."""


@pytest.mark.parametrize("fault", [RuntimeError("secret"), TimeoutError("secret"), Panic("secret")])
def test_a_fault_in_a_thread_is_that_of_one_answer(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def check(matcher: object) -> None:
        raise fault

    monkeypatch.setattr("executor_svc.constraints.check", check)
    constraint = constraints.begin(regex("abc"), b"")
    assert mask_of(constraint) is None
    error = constraint.advance(ord("a"))
    assert error is not None and error.endswith(f"too complex: {type(fault).__name__}")


def test_a_model_whose_tokenizer_cannot_be_read_says_so(tmp_path: Path) -> None:
    constraints = Constraints(tmp_path, VOCAB_SIZE, 1)
    with pytest.raises(GrammarError, match="the tokenizer of this model cannot follow a grammar"):
        constraints.wait_ready()
    constraint = constraints.begin(regex("a"), ())
    assert mask_of(constraint) is None
    error = constraint.advance(5)
    assert error is not None and "tokenizer" in error


def sequence(sequence_id: int, block: int, grammar: Grammar | None, answer: bytes = b"") -> NewSequence:
    tokens = (*PROMPT, *answer)
    sampling = Sampling(temperature=1.0, seed=sequence_id, grammar=grammar)
    return NewSequence(sequence_id, tokens, len(PROMPT), 0, len(tokens), (block,), sampling)


def test_one_that_fails_is_named_and_its_neighbours_draw_what_they_draw_alone(engine: Engine) -> None:
    rows = (sequence(1, 1, None), sequence(2, 2, regex("(a")), sequence(3, 3, regex("[0-9]+x"), b"12"))
    expected = [Session(engine).drawn(new_sequences=(row,))[0] for row in (rows[0], rows[2])]
    session = Session(engine)
    result = session.step(new_sequences=rows)
    assert [token.sequence_id for token in result.sampled] == [1, 2, 3]
    assert [result.sampled[0].token_id, result.sampled[2].token_id] == expected
    assert chr(expected[1]) in "0123456789x"
    assert [failed.sequence_id for failed in result.failed] == [2]
    again = session.step(scheduled=tuple(ScheduledSequence(number, 1) for number in (1, 2)))
    assert again.failed == (FailedSequence(2, result.failed[0].error),)
    assert session.step(scheduled=(ScheduledSequence(3, 1),), finished_ids=(2,)).failed == ()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "bans",
    [{"banned_token_ids": (0, ord("b"))}, {"allowed_token_ids": (ord("c"), ord("d"))}, {"bad_words": ((0,), (98,))}],
)
def test_where_grammar_and_bans_leave_no_token_the_answer_ends_and_its_neighbour_goes_on(
    engine: Engine, bans: dict[str, Any], temperature: float
) -> None:
    """Token 0 is one that the form allows."""
    neighbour, stuck = sequence(1, 1, regex("[0-9]+x"), b"12"), sequence(2, 2, regex("ab?", 0), b"a")
    stuck = replace(stuck, sampling=replace(stuck.sampling, temperature=temperature, **bans))
    result = Session(engine).step(new_sequences=(neighbour, stuck))
    words = "no token is left that both the form of the answer and the other parameters allow"
    assert result.failed == (FailedSequence(2, words),)
    assert chr(result.sampled[0].token_id) in "0123456789x"


def test_an_answer_that_its_grammar_gets_too_complex_for_harms_no_other_of_the_same_grammar(
    constraints: Constraints,
) -> None:
    grammar = regex("[a-z]{8}((((a{1,100}){1,100}){1,100}){1,100}){200,300}")
    early, late = constraints.begin(grammar, b"a" * 7), constraints.begin(grammar, b"a" * 7)
    assert mask_of(early) is not None
    assert early.advance(ord("a")) is None and early.advance(ord("a")) is None
    assert mask_of(early) is None
    assert mask_of(late) is not None and mask_of(constraints.begin(grammar, b"a" * 7)) is not None


def test_a_mask_that_is_not_known_in_time_ends_its_answer_and_a_known_one_is_taken_though_the_time_is_up(
    constraints: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = constraints.begin(regex("abc"), b"")
    assert mask_of(known) is not None
    stuck = threading.Event()
    monkeypatch.setattr("executor_svc.constraints.check", lambda matcher: stuck.wait(30))
    slow = constraints.begin(regex("abc"), b"")
    assert slow.mask(time.monotonic()) is None
    stuck.set()
    error = slow.advance(ord("a"))
    assert error is not None and error.endswith("its next token is not known after 10 s")
    assert known.mask(time.monotonic()) is not None and known.advance(ord("a")) is None


def test_all_masks_of_a_step_are_waited_for_together() -> None:
    asked: list[float] = []

    class Asked:
        def mask(self, until: float) -> None:
            asked.append(until)

    constraint = cast(Constraint, Asked())
    held = [HeldSequence(number, [1], 1, 0, [], GREEDY, 0, constraint) for number in range(3)]
    assert build_masks([Row(each, 0, 1, draws=True) for each in held], torch.device("cpu")) is None
    assert len(asked) == 3 and len(set(asked)) == 1


def test_the_grammar_of_a_resident_sequence_is_reported(engine: Engine) -> None:
    Session(engine).step(new_sequences=(sequence(1, 1, regex("[0-9]+x")),))
    ((resident,),) = [page.sequences for page in engine.resident(16)]
    assert resident.sampling.grammar == regex("[0-9]+x")


@pytest.mark.parametrize("end", [-1, VOCAB_SIZE])
def test_an_end_token_outside_the_vocabulary_is_refused(engine: Engine, end: int) -> None:
    with pytest.raises(InvalidPlan, match="sequence 1 ends with a"):
        Session(engine).step(new_sequences=(sequence(1, 1, regex("a", end)),))
