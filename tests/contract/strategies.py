"""Hypothesis strategies for the step vocabulary: any value that the wire has to carry unchanged."""

from __future__ import annotations

from hypothesis import strategies as st

from common.grammar import Grammar, GrammarKind
from common.logprobs import KnownLogprobs, TokenLogprobs
from common.resident import ResidentPage, ResidentSequence
from common.step import (
    HASH_BYTES,
    BlockCopy,
    Draft,
    ExecutorInfo,
    FailedSequence,
    Fork,
    NewSequence,
    SampledToken,
    Sampling,
    ScheduledSequence,
    SealedBlock,
    StepPlan,
    StepResult,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
f32 = st.floats(width=32, allow_nan=False)
hashes = st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES)


def tuples_of(element: st.SearchStrategy[object], max_size: int = 5) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(element, max_size=max_size).map(tuple)


grammars = st.builds(Grammar, st.sampled_from(GrammarKind), st.text(), tuples_of(u32))
samplings = st.builds(
    Sampling,
    temperature=f32,
    top_p=f32,
    top_k=u32,
    min_p=f32,
    seed=u64,
    repetition_penalty=st.just(1.0) | f32,
    presence_penalty=f32,
    frequency_penalty=f32,
    logit_bias=st.dictionaries(u32, f32, max_size=5).map(lambda bias: tuple(sorted(bias.items()))),
    allowed_token_ids=tuples_of(u32),
    banned_token_ids=tuples_of(u32),
    min_tokens=u32,
    end_token_ids=tuples_of(u32),
    bad_words=tuples_of(tuples_of(u32)),
    num_logprobs=st.none() | u32,
    num_prompt_logprobs=st.none() | u32,
    grammar=st.none() | grammars,
)
seals = st.builds(SealedBlock, u32, hashes)
plans = st.builds(
    StepPlan,
    term=u64,
    step=u64,
    new_sequences=tuples_of(st.builds(NewSequence, u64, tuples_of(u32), u32, u32, u32, tuples_of(u32), samplings), 3),
    scheduled=tuples_of(st.builds(ScheduledSequence, u64, st.just(1) | u32, st.just(()) | tuples_of(u32))),
    finished_ids=tuples_of(u64),
    preempted_ids=tuples_of(u64),
    copies=tuples_of(st.builds(BlockCopy, u32, u32)),
    sealed=tuples_of(seals),
    forks=tuples_of(st.builds(Fork, u64, u64, u32, u32, tuples_of(u32)), 3),
    drafts=tuples_of(st.builds(Draft, u64, tuples_of(u32)), 3),
)


def scores_of(num_top: int) -> st.SearchStrategy[TokenLogprobs]:
    top = st.tuples(*[u32] * num_top), st.tuples(*[f32] * num_top)
    return st.builds(TokenLogprobs, f32, u32, *top)


def known_logprobs_of(num_top: int) -> st.SearchStrategy[KnownLogprobs]:
    return st.builds(KnownLogprobs, u64, u32, st.lists(scores_of(num_top), min_size=1, max_size=4).map(tuple))


results = st.builds(
    StepResult,
    step=u64,
    sampled=tuples_of(st.builds(SampledToken, u64, u32, st.none() | st.integers(0, 3).flatmap(scores_of))),
    execute_ns=u64,
    idle_ns=u64,
    error=st.none() | st.text(min_size=1),
    failed=tuples_of(st.builds(FailedSequence, u64, st.text())),
    known_logprobs=tuples_of(st.integers(0, 3).flatmap(known_logprobs_of), 3),
)
infos = st.builds(
    ExecutorInfo,
    st.binary(min_size=16, max_size=16),
    st.text(),
    *(u32,) * 6,
    tokenizer_digest=st.sampled_from((b"", bytes(range(32)))),
)
residents = st.builds(ResidentSequence, u64, tuples_of(u32), u32, u32, tuples_of(u32), samplings, u32)
pages = st.builds(ResidentPage, st.binary(min_size=16, max_size=16), u64, tuples_of(residents, 3), tuples_of(seals))
