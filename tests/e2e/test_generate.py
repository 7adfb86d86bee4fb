"""The whole way of a request, through two processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from citybus import Client, FinishReason
from tests.harness import Bus, canary

PROMPTS = [
    [(7 * start + 3 * index) % 250 for index in range(length)]
    for start, length in enumerate((1, 15, 16, 17, 31, 32, 33))
]


def test_answers_are_the_same_alone_and_together(bus: Bus) -> None:
    with Client(bus.address) as client:

        def answer(prompt: list[int]) -> tuple[int, ...]:
            return client.complete(token_ids=prompt, temperature=0.0, max_tokens=40, ignore_eos=True).token_ids

        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            together = list(pool.map(answer, PROMPTS))
        assert together == [answer(prompt) for prompt in PROMPTS]
    bus.wait_idle()


def test_deltas_join_to_the_answer_without_gap_or_repeat(bus: Bus) -> None:
    with (
        Client(bus.address) as client,
        client.generate(token_ids=[5, 6, 7], temperature=0.0, max_tokens=33, ignore_eos=True) as stream,
    ):
        tokens: list[int] = []
        for delta in stream:
            assert delta.first_index == len(tokens)
            tokens += delta.token_ids
        assert len(tokens) == 33
        assert stream.finish.reason is FinishReason.LENGTH
        assert stream.finish.usage.completion_tokens == 33
        assert stream.finish.usage.prompt_tokens == 3


def test_closing_a_stream_frees_its_blocks(bus: Bus) -> None:
    with Client(bus.address) as client:
        with client.generate(token_ids=[9] * 20, temperature=0.0, max_tokens=200, ignore_eos=True) as stream:
            next(iter(stream))
        bus.wait_idle()
        canary(client)
