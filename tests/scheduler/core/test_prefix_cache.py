from __future__ import annotations

from itertools import combinations

from common.step import HASH_BYTES
from scheduler_svc.core.prefix_cache import MAX_CANDIDATES, CachedBlock, PartialHit, PrefixCache, block_hash, root_hash

KEY = b"key of this pool"
ROOT = root_hash(KEY, None)


def full(parent: bytes, tokens: tuple[int, ...], step: int = 1) -> CachedBlock:
    return CachedBlock(parent, tokens, step, block_hash(KEY, parent, tokens))


def test_names_are_wide_and_depend_on_key_parent_tokens_and_salt() -> None:
    names = [
        root_hash(KEY, None),
        root_hash(KEY, ""),
        root_hash(KEY, "a"),
        root_hash(b"another", None),
        block_hash(KEY, ROOT, (1, 2)),
        block_hash(KEY, ROOT, (2, 1)),
        block_hash(KEY, ROOT, (1, 2, 0)),
        block_hash(KEY, root_hash(KEY, "a"), (1, 2)),
        block_hash(b"another", ROOT, (1, 2)),
        block_hash(KEY, block_hash(KEY, ROOT, (1, 2)), (1, 2)),
    ]
    assert all(len(name) == HASH_BYTES for name in names)
    assert all(left != right for left, right in combinations(names, 2))
    assert block_hash(KEY, ROOT, [1, 2]) == block_hash(KEY, ROOT, (1, 2))


def test_F19_salts_that_run_together_stay_apart() -> None:
    spaces = [root_hash(KEY, salt) for salt in (None, "", "a", "abc", "salt:", "salt:a", "\0", "ä")]
    assert len(set(spaces)) == len(spaces)
    chained = block_hash(KEY, root_hash(KEY, "a"), (98, 99))
    assert chained != block_hash(KEY, root_hash(KEY, "ab"), (99,))


def test_a_full_block_is_found_by_name_until_it_is_forgotten() -> None:
    cache = PrefixCache()
    content = full(ROOT, (1, 2, 3))
    assert content.name is not None
    assert cache.insert(7, content)
    assert cache.find(content.name) == 7
    assert 7 in cache
    assert cache.insert(8, content) is False, "the name has a block"
    assert 8 not in cache
    cache.forget(8)
    assert cache.find(content.name) == 7
    cache.forget(7)
    assert cache.find(content.name) is None
    assert len(cache) == 0
    assert cache.find_partial(ROOT, (1, 2), 9) is None


def test_the_longest_common_beginning_wins_and_the_newest_of_equals() -> None:
    cache = PrefixCache()
    cache.insert(0, full(ROOT, (1, 2, 3, 4)))
    cache.insert(1, CachedBlock(ROOT, (1, 2, 9), 1, None))
    cache.insert(2, CachedBlock(ROOT, (2,), 1, None))
    assert cache.find_partial(ROOT, (1, 2, 3, 5), 2) == PartialHit(0, 3)
    assert cache.find_partial(ROOT, (1, 2, 9, 9), 2) == PartialHit(1, 3)
    assert cache.find_partial(ROOT, (1, 2, 7), 2) == PartialHit(1, 2)
    assert cache.find_partial(ROOT, (1,), 2) == PartialHit(1, 1)
    assert cache.find_partial(ROOT, (2, 2), 2) == PartialHit(2, 1)
    assert cache.find_partial(ROOT, (3,), 2) is None
    assert cache.find_partial(ROOT, (), 2) is None
    assert cache.find_partial(root_hash(KEY, ""), (1, 2), 2) is None


def test_what_a_plan_writes_cannot_be_copied_by_the_same_plan() -> None:
    cache = PrefixCache()
    cache.insert(0, full(ROOT, (1, 2, 3, 4), step=5))
    cache.insert(1, CachedBlock(ROOT, (1, 2), 4, None))
    assert cache.find_partial(ROOT, (1, 2, 3), 5) == PartialHit(1, 2)
    assert cache.find_partial(ROOT, (1, 2, 3), 6) == PartialHit(0, 3)
    assert cache.find_partial(ROOT, (1, 2, 3), 4) is None


def test_the_search_is_bounded_and_begins_with_the_newest() -> None:
    cache = PrefixCache()
    cache.insert(0, full(ROOT, (1, 2, 3)))
    for block in range(1, MAX_CANDIDATES + 1):
        cache.insert(block, CachedBlock(ROOT, (1, 100 + block), 1, None))
    assert cache.find_partial(ROOT, (1, 2, 3), 2) == PartialHit(MAX_CANDIDATES, 1)
    cache.forget(5)
    assert cache.find_partial(ROOT, (1, 2, 3), 2) == PartialHit(0, 3)
