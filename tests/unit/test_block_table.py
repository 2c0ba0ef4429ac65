"""BlockTable: which pages a request takes, shares and gives back."""

from __future__ import annotations

from inferx.memory.block_table import BlockTable
from inferx.memory.pool import PagePool


def make_pool(num_blocks: int = 8, *, caching: bool = True, block_size: int = 16) -> PagePool:
    return PagePool(num_blocks, block_size, enable_prefix_caching=caching)


def cached(pool: PagePool, token_ids: list[int], salt: str | None = None) -> list[int]:
    """Lets a request compute these tokens and go; its pages."""
    table = BlockTable(pool, salt)
    assert table.open(token_ids) is not None
    table.register(token_ids, len(token_ids))
    pages = table.pages
    table.release()
    return pages


def test_open_takes_pages_for_all_tokens() -> None:
    table = BlockTable(make_pool())
    assert table.open(list(range(33))) == 0
    assert (table.pages, table.capacity) == ([0, 1, 2], 48)


def test_open_shares_the_cached_pages_of_the_longest_prefix() -> None:
    pool = make_pool()
    assert cached(pool, list(range(50))) == [0, 1, 2, 3]
    assert (pool.num_free, pool.num_cached) == (5, 3)
    table = BlockTable(pool)
    assert table.open([*range(40), *range(100, 120)]) == 32
    # Page 3 was never full, so it went back as free, and free pages are taken last in first out.
    assert table.pages == [0, 1, 3, 4]


def test_a_prefix_never_covers_the_last_token() -> None:
    pool = make_pool()
    cached(pool, list(range(48)))
    for num_tokens, prefix in [(16, 0), (17, 16), (32, 16), (33, 32), (48, 32), (49, 48)]:
        table = BlockTable(pool)
        assert table.open(list(range(num_tokens))) == prefix
        table.release()


def test_large_pages_are_shared_whole() -> None:
    pool = make_pool(block_size=64)
    cached(pool, list(range(200)))
    table = BlockTable(pool)
    assert table.open([*range(190), 7]) == 128


def test_open_takes_nothing_if_too_few_pages_would_remain() -> None:
    pool = make_pool(4)
    cached(pool, list(range(32)))
    table = BlockTable(pool)
    # Three pages are needed. Two of them are cached and count as available until they are taken.
    assert table.open(list(range(33)), spare=2) is None
    assert (pool.num_free, pool.num_cached, pool.num_used) == (2, 2, 0)
    assert table.pages == []
    assert table.open(list(range(33)), spare=1) == 32


def test_open_takes_nothing_while_the_prefix_is_unreadable() -> None:
    pool = make_pool()
    pages = cached(pool, list(range(32)))
    table = BlockTable(pool)
    assert table.open(list(range(40)), unreadable={pages[1]}) is None
    assert table.open(list(range(20)), unreadable={pages[1]}) == 16


def test_salts_do_not_share() -> None:
    pool = make_pool(16)
    cached(pool, list(range(32)), "tenant a")
    assert BlockTable(pool, "tenant b").open(list(range(40))) == 0
    assert BlockTable(pool, None).open(list(range(40))) == 0
    assert BlockTable(pool, "tenant a").open(list(range(40))) == 32


def test_reserve_adds_pages_at_the_end_when_the_last_one_is_full() -> None:
    table = BlockTable(make_pool())
    table.open(list(range(16)))
    assert table.reserve(16) == []
    assert table.reserve(17) == [1]
    assert table.reserve(17, num_lookahead=16) == [2]
    assert table.pages == [0, 1, 2]
    assert table.reserve(1) == []


def test_reserve_takes_all_or_nothing() -> None:
    pool = make_pool(2)
    table = BlockTable(pool)
    table.open([1])
    assert table.reserve(48) is None
    assert (table.pages, pool.num_free) == ([0], 1)


def test_a_page_is_registered_once_it_is_full_of_known_and_computed_tokens() -> None:
    table = BlockTable(make_pool())
    tokens = list(range(40))
    table.open(tokens)
    assert table.register(tokens, 15) == []
    assert table.register(tokens, 16) == [0]
    assert table.register(tokens, 16) == []
    assert table.register(tokens[:31], 32) == [], "one of the computed tokens is not known yet"
    assert table.register(tokens, 40) == [1]


def test_register_is_worth_a_call_above_register_above_tokens() -> None:
    table = BlockTable(make_pool())
    tokens = list(range(20))
    table.open(tokens)
    assert table.register_above == 16
    table.register(tokens, 20)
    assert table.register_above == 32


def test_a_page_of_known_content_stays_private_and_its_successors_are_registered() -> None:
    pool = make_pool()
    tokens = list(range(33))
    first, second = BlockTable(pool), BlockTable(pool)
    first.open(tokens[:17])
    second.open(tokens)
    assert first.register(tokens[:17], 17) == [0]
    assert second.register(tokens, 33) == [3]
    first.release()
    second.release()
    assert BlockTable(pool).open(tokens) == 32
    assert (pool.num_cached, pool.num_used) == (0, 3)


def test_the_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    pool = make_pool(4)
    cached(pool, list(range(64)))
    other = BlockTable(pool)
    assert other.open(list(range(100, 132))) == 0
    assert other.pages == [3, 2]
    other.release()
    assert BlockTable(pool).open(list(range(64))) == 32


def test_without_prefix_caching_nothing_is_hashed_or_kept() -> None:
    pool = make_pool(caching=False)
    assert pool.hasher is None
    table = BlockTable(pool, "salt")
    tokens = list(range(32))
    assert table.open(tokens) == 0
    assert table.register(tokens, 32) == []
    table.release()
    assert (pool.num_free, pool.num_cached) == (8, 0)
    assert table.open(tokens) == 0


def test_a_released_table_can_be_opened_again() -> None:
    pool = make_pool()
    table = BlockTable(pool)
    tokens = list(range(40))
    table.open(tokens)
    table.register(tokens, 40)
    table.release()
    assert (table.pages, table.capacity) == ([], 0)
    assert table.open([*tokens, 1, 2]) == 32
