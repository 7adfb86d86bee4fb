"""The seeds of samples, as docs/api.md tells them."""

from __future__ import annotations

from scheduler_svc.sample_seeds import sample_seed


def test_sample_0_has_the_seed_of_its_request() -> None:
    assert [sample_seed(seed, 0) for seed in (0, 7, 2**64 - 1)] == [0, 7, 2**64 - 1]


def test_seeds_are_those_of_the_documented_function() -> None:
    assert sample_seed(7, 1) == 0x9E3779B97F4A7C1C
    assert sample_seed(7, 3) == (7 + 3 * 0x9E3779B97F4A7C15) % 2**64 == 0xDAA66D2C7DDF7446


def test_requests_with_neighbouring_seeds_share_no_sample() -> None:
    seeds = [sample_seed(seed, index) for seed in range(1000) for index in range(64)]
    assert len(set(seeds)) == len(seeds)
