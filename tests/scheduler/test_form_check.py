"""Forms are tried in a process that may die of them, and comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from common.errors import InvalidRequest, Unavailable
from common.grammar import Grammar, GrammarKind
from scheduler_svc.form_check import FormCheck
from scheduler_svc.forms import Form
from tests.checkpoints import VOCAB_SIZE, write_tiny


@asynccontextmanager
async def checking(folder: Path) -> AsyncIterator[FormCheck]:
    forms = FormCheck(folder)
    try:
        yield forms
    finally:
        await forms.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny", num_layers=1)


def form(source: str, kind: GrammarKind = GrammarKind.REGEX) -> Form:
    return Form("structured_output.x", Grammar(kind, source))


def worker_of(forms: FormCheck) -> int:
    assert forms._worker is not None
    return forms._worker.pid


async def refusal(forms: FormCheck, tried: Form) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await forms.check(tried, VOCAB_SIZE)
    return str(caught.value)


async def test_good_and_bad_forms_are_told_apart(model: Path) -> None:
    async with checking(model) as forms:
        await asyncio.gather(*(forms.check(form(f"a{{{count}}}\n"), VOCAB_SIZE) for count in range(1, 20)))
        first = worker_of(forms)
        assert (await refusal(forms, form("(a"))).startswith("structured_output.x: ")
        schema = form('{"not": {}}', GrammarKind.JSON_SCHEMA)
        assert await refusal(forms, schema) == (
            'structured_output.x: the keyword "not" at # is not supported: leave it out'
        )
        endless = form('{"$ref":"#"}', GrammarKind.JSON_SCHEMA)
        assert await refusal(forms, endless) == "structured_output.x: no text of this form goes on from here"
        assert "%json" in await refusal(forms, form('start: %json {"x-guidance": {}}', GrammarKind.LARK))
        assert worker_of(forms) == first


@pytest.mark.parametrize(
    ("killed_by", "cause"), [(signal.SIGPROF, "too long to compile"), (signal.SIGSEGV, "too much memory")]
)
async def test_F58_a_form_that_its_process_dies_of_is_refused_and_the_next_one_is_tried(
    model: Path, killed_by: signal.Signals, cause: str
) -> None:
    async with checking(model) as forms:
        await forms.check(form("a"), VOCAB_SIZE)
        first = worker_of(forms)
        os.kill(first, killed_by)
        assert cause in await refusal(forms, form("b"))
        assert cause in await refusal(forms, form("b")), "it is not tried again"
        await forms.check(form("c"), VOCAB_SIZE)
        assert worker_of(forms) != first


async def test_a_process_that_somebody_else_ended_is_no_fault_of_the_form(model: Path) -> None:
    async with checking(model) as forms:
        await forms.check(form("a"), VOCAB_SIZE)
        os.kill(worker_of(forms), signal.SIGKILL)
        with pytest.raises(Unavailable, match="could not be checked: try again"):
            await forms.check(form("b"), VOCAB_SIZE)
        await forms.check(form("b"), VOCAB_SIZE)


async def test_what_was_tried_once_is_not_tried_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what somebody else has tried while it waited; of all, the last ones are known."""
    monkeypatch.setattr("scheduler_svc.form_check._MAX_KNOWN", 2)
    tried: list[str] = []

    async def ask(grammar: Grammar, vocab_size: int) -> str | None:
        tried.append(grammar.source)
        await asyncio.sleep(0)
        return "bad" if grammar.source == "b" else None

    async with checking(model) as forms:
        monkeypatch.setattr(forms, "_ask", ask)
        for _ in range(2):
            refusals = await asyncio.gather(refusal(forms, form("b")), refusal(forms, form("b")))
            assert list(refusals) == ["structured_output.x: bad"] * 2
            await asyncio.gather(forms.check(form("a"), VOCAB_SIZE), forms.check(form("a"), VOCAB_SIZE))
        assert tried == ["b", "a"]
        await refusal(forms, form("b"))
        await forms.check(form("c"), VOCAB_SIZE)
        await refusal(forms, form("b"))
        await forms.check(form("a"), VOCAB_SIZE)
    assert tried == ["b", "a", "c", "a"]


async def test_a_caller_that_goes_away_leaves_its_answer_to_nobody(model: Path) -> None:
    async with checking(model) as forms:
        await forms.check(form("a"), VOCAB_SIZE)
        gone = asyncio.create_task(forms.check(form("(b"), VOCAB_SIZE))
        await asyncio.sleep(0)
        gone.cancel()
        await forms.check(form("c"), VOCAB_SIZE)
        assert gone.cancelled()


async def test_a_caller_that_goes_away_while_it_waits_is_not_tried(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def ask(grammar: Grammar, vocab_size: int) -> None:
        tried.append(grammar.source)
        await asyncio.sleep(0.01)

    async with checking(model) as forms:
        monkeypatch.setattr(forms, "_ask", ask)
        callers = [asyncio.create_task(forms.check(form(source), VOCAB_SIZE)) for source in "abc"]
        await asyncio.sleep(0)
        callers[1].cancel()
        await asyncio.wait(callers)
    assert tried == ["a", "c"]


async def test_a_model_whose_tokenizer_cannot_be_followed_refuses_every_form(tmp_path: Path) -> None:
    async with checking(tmp_path) as forms:
        for _ in range(2):
            assert "the tokenizer of this model cannot follow a grammar" in await refusal(forms, form("a"))


def branching(count: int) -> str:
    """A grammar that compiles at once, and has so many ways to be read that every token takes long."""
    ways = " | ".join(f'"a" y{number}' for number in range(count))
    return f"start: x\nx: {ways}\n" + "\n".join(f'y{number}: "a" x "b" | "a"' for number in range(count))


async def test_F58_a_form_that_is_slow_to_follow_is_refused(model: Path) -> None:
    async with checking(model) as forms:
        await forms.check(form(branching(4), GrammarKind.LARK), VOCAB_SIZE)
        assert "too long to compile or to follow" in await refusal(forms, form(branching(400), GrammarKind.LARK))
        many = await refusal(forms, form(branching(700), GrammarKind.LARK))
        assert "items" in many or "too long" in many  # a slow machine's time ends first
        await forms.check(form("a"), VOCAB_SIZE)
