"""Prompts of every kind to token ids: what is refused, and that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as BackendTokenizer

from common.errors import Exhausted, InvalidRequest
from scheduler_svc.chat_template import ChatTemplate
from scheduler_svc.model_files import read_model_files
from scheduler_svc.prompts import (
    MAX_WAITING_BYTES,
    ChatPrompt,
    Message,
    Prompt,
    PromptEncoder,
    TextPrompt,
    TokenPrompt,
    check_room,
)
from scheduler_svc.tokenizer import Tokenizer
from tests.scheduler.text_folders import BOS, CHATML, IM_END, IM_START, byte_level, write_folder

VOCAB, CONTEXT = 266, 64

Make = Callable[..., PromptEncoder]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[PromptEncoder] = []

    def make_encoder(
        backend: BackendTokenizer | None = None,
        chat_template: str | None = CHATML,
        max_seconds: float = 2.0,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> PromptEncoder:
        files = read_model_files(write_folder(tmp_path, backend, chat_template=chat_template))
        source = files.chat_template
        template = ChatTemplate(source, files.special_tokens, max_seconds=max_seconds) if source else None
        made.append(PromptEncoder(Tokenizer(files), template, max_waiting_bytes))
        return made[-1]

    yield make_encoder
    for encoder in made:
        encoder.close()


def chat(*contents: str) -> ChatPrompt:
    return ChatPrompt(tuple(Message("user", content) for content in contents))


async def refusal(encoder: PromptEncoder, prompt: Prompt, *, vocab_size: int = VOCAB) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await encoder.encode(prompt, vocab_size, CONTEXT)
    return str(caught.value)


async def test_each_kind_of_prompt(make: Make) -> None:
    encoder = make()
    assert await encoder.encode(TextPrompt("hi"), VOCAB, CONTEXT) == (BOS, 104, 105)
    assert await encoder.encode(TokenPrompt((5, 265)), VOCAB, CONTEXT) == (5, 265)
    turn = (IM_START, *b"user\nhi", IM_END, *b"\n", IM_START, *b"assistant\n")
    assert await encoder.encode(chat("hi"), VOCAB, CONTEXT) == turn
    assert encoder.has_chat_template


async def test_long_text_is_encoded_whole(make: Make) -> None:
    text = "ab" * 2500
    assert await make().encode(TextPrompt(text), VOCAB, 10_000) == (BOS, *text.encode())


async def test_F13_empty_prompt(make: Make) -> None:
    without_bos = make(byte_level(bos=False), "{{ messages[0].content }}")
    assert await refusal(without_bos, TextPrompt("")) == "text: the prompt is empty; it must have at least one token"
    assert (await refusal(without_bos, TokenPrompt(()))).startswith("tokens: the prompt is empty")
    assert (await refusal(without_bos, chat(""))).startswith("chat: the model's template makes an empty prompt")
    assert await make().encode(TextPrompt(""), VOCAB, CONTEXT) == (BOS,)


async def test_F09_token_ids_outside_the_vocabulary(make: Make) -> None:
    encoder = make()
    for outside in (VOCAB, VOCAB + 1, 2**31, 2**32 - 1):
        expected = f"tokens: token id {outside} is over 265, the model's largest"
        assert await refusal(encoder, TokenPrompt((1, outside, 2))) == expected
    assert await encoder.encode(TokenPrompt((0, VOCAB - 1)), VOCAB, CONTEXT) == (0, VOCAB - 1)


async def test_tokenizer_with_more_tokens_than_the_model(make: Make) -> None:
    assert await refusal(make(), TextPrompt("a<think>"), vocab_size=260) == (
        "text: token id 260 is over 259, the model's largest"
    )


async def test_F48_chat_without_a_template_while_text_still_works(make: Make) -> None:
    encoder = make(chat_template=None)
    assert not encoder.has_chat_template
    assert await refusal(encoder, chat("hi")) == (
        "chat: the model has no chat template; send the prompt as text or tokens"
    )
    assert await encoder.encode(TextPrompt("hi"), VOCAB, CONTEXT) == (BOS, 104, 105)


async def test_refusal_that_quotes_a_message_has_no_marks_in_it(make: Make) -> None:
    encoder = make(chat_template="{{ raise_exception('no: ' + messages[0].content) }}")
    assert await refusal(encoder, chat("<|im_end|><")) == (
        "chat: the model's template refuses this conversation: no: <|im_end|><"
    )


@pytest.mark.parametrize("kind", [TextPrompt, chat])
async def test_F41_text_that_is_much_too_long(make: Make, kind: Callable[[str], Prompt]) -> None:
    encoder = make(chat_template="{{ messages[0].content }}")
    expected = "the prompt has more than 64 tokens, all that the model's context holds"
    assert await refusal(encoder, kind("x" * 5_000_000)) == expected
    assert len(await encoder.encode(kind("x" * 640), VOCAB, CONTEXT)) >= 640


async def test_F41_conversation_that_is_much_too_long_is_refused_before_it_is_shielded(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = make()
    monkeypatch.setattr(encoder.tokenizer, "shield", None)
    expected = "the prompt has more than 64 tokens, all that the model's context holds"
    for content in ("<" * 65_537, "<|im_end|>" * 6_554):
        assert await refusal(encoder, chat(content)) == expected


async def test_long_conversation_is_as_long_as_the_template_makes_it(make: Make) -> None:
    """What the template leaves out does not count; what it keeps is shielded, however long the rest is."""
    encoder = make(chat_template="{{ messages[-1].content }}<|im_end|>")
    left_out = "<|im_end|>" * 10_000
    assert await encoder.encode(chat(left_out, "<|eos|>"), VOCAB, CONTEXT) == (*b"<|eos|>", IM_END)
    assert await refusal(encoder, chat("<|eos|>", left_out)) == (
        "the prompt has more than 64 tokens, all that the model's context holds"
    )


@pytest.mark.parametrize("length", [63, 64, 65, 640])
def test_F15_prompt_at_the_limit(length: int) -> None:
    if length == 63:
        check_room(length, 64)
        return
    with pytest.raises(InvalidRequest) as caught:
        check_room(length, 64)
    assert str(caught.value) == (
        f"the prompt has {length} tokens and the model's context is 64, which leaves no room for an answer: "
        "shorten it to at most 63 tokens"
    )


async def test_F56_event_loop_goes_on_while_a_template_runs_away(make: Make) -> None:
    loops = "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
    encoder = make(chat_template="{% set r = range(90000) %}" + loops, max_seconds=0.3)
    running = asyncio.create_task(refusal(encoder, chat("hi")))
    turns = 0
    while not running.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert "takes longer than 0.3 s" in running.result()
    assert turns > 10


async def test_F41_event_loop_goes_on_while_a_long_text_is_encoded(make: Make) -> None:
    running = asyncio.create_task(make().encode(TextPrompt("the quick brown fox " * 25_000), VOCAB, 10**6))
    turns = 0
    while not running.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len(running.result()) > 400_000
    assert turns > 10


async def test_F41_prompts_that_wait_are_bounded_by_their_bytes(make: Make) -> None:
    """A megabyte waits, so that a second one is too much, whatever its kind; short text does not wait at all."""
    encoder = make(chat_template="{{ messages[0].content }}", max_waiting_bytes=1_500_000)
    large = chat("x" * 1_000_000)
    first = asyncio.create_task(encoder.encode(large, VOCAB, 2_000_000))
    await asyncio.sleep(0)
    for second in (large, TextPrompt("x" * 1_000_000)):
        with pytest.raises(Exhausted, match=r"^prompts of 0 MiB wait to be encoded.* try again later$") as caught:
            await encoder.encode(second, VOCAB, 2_000_000)
        assert caught.value.retry_after_s == 1.0
    assert len(await encoder.encode(TextPrompt("hi"), VOCAB, CONTEXT)) == 3
    assert len(await encoder.encode(chat("x" * 400_000), VOCAB, 2_000_000)) == 400_000
    assert len(await first) == 1_000_000
    assert len(await encoder.encode(large, VOCAB, 2_000_000)) == 1_000_000


async def test_F41_prompt_larger_than_the_bound_is_taken_alone(make: Make) -> None:
    encoder = make(chat_template="{{ messages[0].content }}", max_waiting_bytes=10)
    assert len(await encoder.encode(chat("x" * 5000), VOCAB, 10_000)) == 5000


async def test_F41_cancelled_prompt_waits_no_more(make: Make) -> None:
    """Two that run away hold both threads; what was to be encoded after them gives its place back at once."""
    loops = "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"
    encoder = make(chat_template="{% set r = range(90000) %}" + loops, max_seconds=0.5, max_waiting_bytes=1_000_000)
    busy = [asyncio.create_task(refusal(encoder, chat("hi"))) for _ in range(2)]
    for _ in range(3):
        waiting = asyncio.create_task(encoder.encode(chat("x" * 900_000), VOCAB, CONTEXT))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    for each in busy:
        assert "takes longer than 0.5 s" in await each
