"""Answers that are held to a form: each keeps to it, and is the same alone, in company, preempted, on a prefix hit, and
when either service is killed meanwhile."""

from __future__ import annotations

import json
import re
import signal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from bench.schemas import SUPPORTED
from citybus import CitybusError, Completion, FinishReason
from tests.checkpoints import EOS, write_tiny
from tests.e2e.field_cases.field import Field, computed_when_preempted, running_field, together

LENGTH = 160
SAMPLED: dict[str, Any] = {"temperature": 1.0, "ignore_eos": False}
NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 50, "maxItems": 60}
LONG = {
    "json_schema": NUMBERS,
    "regex": "([a-z]{3}-){60}end",
    "grammar": 'start: "[" WORD (", " WORD){50} "]"\nWORD: /[a-z]{2}/',
}
"""Forms whose texts take more than 150 tokens."""

GROWING = "[a-z]{60}((((a{1,100}){1,100}){1,100}){1,100}){200,300}"
"""Takes more with every token, and is given up after some."""

WORDS = ['say "yes"', "no\n", "non", "é😀", "back\\slash"]

Holds = Callable[[str], Any]


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """Fewer blocks than seats can fill, and a journal."""
    folder = tmp_path_factory.mktemp("forms")
    model = write_tiny(folder / "tiny", max_model_len=512)
    flags = ("--num-blocks", 24, "--max-sequences", 6, "--max-step-tokens", 48)
    journal = ("--journal", folder / "journal.db", "--executor-timeout", 60)
    with running_field(model, folder / "bus", executor=flags, scheduler=journal) as running:
        yield running
        running.check()


def json_of(schema: Any) -> Holds:
    return lambda text: jsonschema.validate(json.loads(text), schema)


def matches(pattern: str) -> Holds:
    def holds(text: str) -> None:
        assert re.fullmatch(pattern, text)

    return holds


def one_of(texts: list[str]) -> Holds:
    def holds(text: str) -> None:
        assert text in texts

    return holds


FORMS: dict[str, tuple[dict[str, Any], Holds]] = {
    **{name: ({"json_schema": case.schema}, json_of(case.schema)) for name, case in SUPPORTED.items()},
    "an object": ({"json_object": True}, json_of({"type": "object"})),
    "time": ({"regex": "([01][0-9]|2[0-3]):[0-5][0-9]"}, matches("([01][0-9]|2[0-3]):[0-5][0-9]")),
    "characters": ({"regex": "[äöü]{3}|日本.{2}"}, matches("[äöü]{3}|日本.{2}")),
    "choice": ({"choice": WORDS}, one_of(WORDS)),
    "sums": (
        {"grammar": 'start: sum\nsum: NUM | sum "+" NUM | "(" sum ")"\nNUM: /[0-9]{1,3}/'},
        matches(r"[(]*[0-9]+([+)][0-9]*)*"),
    ),
}


def asker(field: Field, number: int, options: dict[str, Any], **more: Any) -> Callable[[], Completion]:
    settings = {**SAMPLED, "seed": number, "cache_salt": uuid.uuid4().hex, **options, **more}
    return lambda: field.ask([number, 7, 9], LENGTH, **settings)


def test_every_answer_keeps_to_its_form_and_is_the_same_alone(field: Field) -> None:
    """All at once, in six seats and too few blocks; then some of them alone."""
    since = len(field.bus.plans())
    forms = list(FORMS.values())
    answers = together([asker(field, number, options) for number, (options, _) in enumerate(forms)])
    whole = 0
    for (_, holds), answer in zip(forms, answers, strict=True):
        if answer.finish.reason is FinishReason.STOP:
            holds(answer.text)
            assert answer.token_ids[-1] == answer.finish.stop_token_id == EOS
            whole += 1
        else:
            assert answer.finish.reason is FinishReason.LENGTH and len(answer.token_ids) == LENGTH
    assert whole >= len(forms) * 2 // 3
    field.bus.wait_idle()
    assert computed_when_preempted(field.bus.plans()[since:]), "somebody was to be preempted"
    for number in range(0, len(forms), 6):
        assert asker(field, number, forms[number][0])().token_ids == answers[number].token_ids


def test_greedy_answers_and_other_ends(field: Field) -> None:
    """An end token may be any; where it is a text too, it ends the answer wherever the form has it."""
    form = {"regex": "[0-9]{3}x*"}
    greedy = field.ask([5, 6], 40, ignore_eos=False, **form)
    assert greedy.finish.reason is FinishReason.LENGTH or re.fullmatch(form["regex"], greedy.text)
    other = field.ask([5, 6], 40, stop_token_ids=[240], regex="[0-9]{3}")
    assert re.fullmatch("[0-9]{3}", other.text) and other.finish.stop_token_id == 240
    inside = field.ask([5, 6], 40, stop_token_ids=[ord("x")], regex="[0-9]{3}x[0-9]{3}")
    assert re.fullmatch("[0-9]{3}", inside.text) and len(inside.token_ids) == 4
    cut = field.ask([5, 6], 2, ignore_eos=False, regex="[0-9]{3}")
    assert (cut.finish.reason, len(cut.text)) == (FinishReason.LENGTH, 2)
    stopped = field.ask([5, 6], 9, ignore_eos=False, regex="abc[0-9]{3}", stop=["bc"])
    assert (stopped.finish.reason, stopped.text) == (FinishReason.STOP, "a")


def test_an_answer_on_a_prefix_hit_is_the_same(field: Field) -> None:
    options = SAMPLED | {"seed": 3, "json_schema": NUMBERS}
    prompt, salt = list(range(40, 75)), uuid.uuid4().hex
    first, second = (field.ask(prompt, 300, cache_salt=salt, **options) for _ in range(2))
    assert (first.finish.usage.cached_tokens, second.finish.usage.cached_tokens) == (0, len(prompt) - 1)
    assert first.token_ids == second.token_ids
    jsonschema.validate(json.loads(first.text), NUMBERS)


def kill_scheduler(field: Field) -> None:
    """While the executor stands still, so that nobody ends meanwhile."""
    field.bus.executor.send(signal.SIGSTOP)
    field.bus.scheduler.kill()
    field.bus.scheduler.restart()
    field.bus.executor.send(signal.SIGCONT)


def kill_executor(field: Field) -> None:
    field.bus.executor.kill()
    field.bus.executor.restart()


@pytest.mark.parametrize("kill", [kill_scheduler, kill_executor])
def test_answers_go_on_where_they_were_when_a_service_is_killed(field: Field, kill: Callable[[Field], None]) -> None:
    forms = [{name: form} for name, form in LONG.items()]
    options = [SAMPLED | {"seed": number, **form} for number, form in enumerate(forms)]
    prompts = [[number, 8, 8] for number in range(len(forms))]
    expected = [field.reference(prompt, 300, **each) for prompt, each in zip(prompts, options, strict=True)]
    with field.paused():
        rides = [field.start(prompt, 300, **each) for prompt, each in zip(prompts, options, strict=True)]
    for ride in rides:
        ride.read_some(20)
    kill(field)
    answers = together([ride.read for ride in rides])
    assert [answer.token_ids for answer in answers] == expected
    assert all(answer.finish.reason is FinishReason.STOP for answer in answers)
    jsonschema.validate(json.loads(answers[0].text), NUMBERS)
    assert re.fullmatch(str(LONG["regex"]), answers[1].text)
    field.client.wait_ready(60)


def test_one_whose_form_grows_too_complex_ends_alone(field: Field) -> None:
    neighbours = [asker(field, number, {"regex": "[a-z]{40}"}) for number in range(3)]
    expected = [ask().token_ids for ask in neighbours]

    def grow() -> str:
        with pytest.raises(CitybusError, match="cannot be held to its form any more") as caught:
            field.ask([4], LENGTH, ignore_eos=False, regex=GROWING)
        return str(caught.value)

    message, *answers = together([grow, *neighbours])
    assert "\n" not in str(message)
    assert [answer.token_ids for answer in answers if isinstance(answer, Completion)] == expected
