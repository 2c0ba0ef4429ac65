"""PagePool: every page is free, cached or used, and eviction takes the longest unused."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from inferx.memory.pool import PagePool


def make_pool(num_blocks: int = 4) -> PagePool:
    return PagePool(num_blocks, 16, enable_prefix_caching=True)


def counts(pool: PagePool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_used


def test_pages_are_given_from_zero_up_and_come_back() -> None:
    pool = make_pool()
    assert pool.allocate(3) == [0, 1, 2]
    assert counts(pool) == (1, 0, 3)
    pool.release([2, 1, 0])
    assert counts(pool) == (4, 0, 0)
    assert pool.allocate(4) == [0, 1, 2, 3]


def test_a_registered_page_stays_cached_and_is_found_until_it_is_evicted() -> None:
    pool = make_pool()
    pages = pool.allocate(2)
    assert pool.register(pages[0], b"a")
    pool.release(pages)
    assert counts(pool) == (3, 1, 0)
    assert pool.find([b"a", b"b"]) == [0]
    assert pool.allocate(4) == [1, 2, 3, 0], "free pages go first"
    assert pool.find([b"a"]) == []


def test_a_chain_is_found_up_to_its_first_gap() -> None:
    pool = make_pool()
    for page, digest in zip(pool.allocate(3), [b"a", b"b", b"d"], strict=True):
        pool.register(page, digest)
    assert pool.find([b"a", b"b", b"c", b"d"]) == [0, 1]
    assert pool.find([b"c", b"d"]) == []


def test_the_longest_unused_page_is_evicted_first_and_use_makes_it_young() -> None:
    pool = make_pool(3)
    for page, digest in zip(pool.allocate(3), [b"a", b"b", b"c"], strict=True):
        pool.register(page, digest)
    pool.release([1, 0, 2])
    pool.acquire([1])
    pool.release([1])
    assert [pool.allocate(1), pool.allocate(1), pool.allocate(1)] == [[0], [2], [1]]


def test_a_page_in_use_is_never_evicted() -> None:
    pool = make_pool(2)
    pool.register(pool.allocate(1)[0], b"a")
    pool.release([0])
    pool.acquire([0])
    assert counts(pool) == (1, 0, 1)
    with pytest.raises(ValueError, match="2 pages asked for, 1 available"):
        pool.allocate(2)
    assert pool.allocate(1) == [1]
    assert pool.find([b"a"]) == [0]


def test_two_readers_have_to_release_a_page() -> None:
    pool = make_pool()
    pool.register(pool.allocate(1)[0], b"a")
    pool.acquire([0])
    pool.release([0])
    assert counts(pool) == (3, 0, 1)
    pool.release([0])
    assert counts(pool) == (3, 1, 0)


def test_of_two_pages_with_one_content_the_first_stays_registered() -> None:
    pool = make_pool()
    pool.allocate(2)
    assert pool.register(0, b"a")
    assert not pool.register(1, b"a")
    pool.release([0, 1])
    assert counts(pool) == (3, 1, 0)
    assert pool.find([b"a"]) == [0]


def test_only_pages_without_a_user_count_as_idle() -> None:
    pool = make_pool()
    for page, digest in zip(pool.allocate(2), [b"a", b"b"], strict=True):
        pool.register(page, digest)
    pool.release([1])
    assert pool.num_idle([0, 1]) == 1


def test_a_page_cannot_be_released_twice() -> None:
    pool = make_pool()
    pool.release(pool.allocate(1))
    with pytest.raises(ValueError, match="page 0 is released more often than it was taken"):
        pool.release([0])


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0), (4, 24)])
def test_sizes_that_cannot_work_are_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        PagePool(num_blocks, block_size, enable_prefix_caching=False)


@pytest.mark.parametrize(("num_tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for_rounds_up(num_tokens: int, pages: int) -> None:
    assert make_pool().pages_for(num_tokens) == pages


class PoolMachine(RuleBasedStateMachine):
    """The pool against a model that writes down every reference."""

    NUM_BLOCKS = 5

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(self.NUM_BLOCKS, 16, enable_prefix_caching=True)
        self.references: list[int] = []  # a page as often as it is held
        self.digests: dict[int, bytes] = {}  # registered pages, used or cached
        self.lru: list[int] = []
        self.next_digest = 0

    @rule(num_pages=st.integers(0, NUM_BLOCKS))
    def allocate(self, num_pages: int) -> None:
        if num_pages > self.NUM_BLOCKS - len(set(self.references)):
            with pytest.raises(ValueError, match="available"):
                self.pool.allocate(num_pages)
            return
        num_evicted = max(0, num_pages - self.pool.num_free)
        evicted, self.lru = self.lru[:num_evicted], self.lru[num_evicted:]
        pages = self.pool.allocate(num_pages)
        assert len(set(pages)) == num_pages
        assert set(pages).isdisjoint(self.references)
        assert [page for page in pages if page in self.digests] == evicted
        for page in evicted:
            del self.digests[page]
        self.references += pages

    @precondition(lambda self: self.references)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.references))
        self.references.remove(page)
        self.pool.release([page])
        if page not in self.references and page in self.digests:
            self.lru.append(page)

    @precondition(lambda self: set(self.references) - set(self.digests))
    @rule(data=st.data())
    def register(self, data: st.DataObject) -> None:
        private = sorted(set(self.references) - set(self.digests))
        page = data.draw(st.sampled_from(private))
        self.next_digest += 1
        self.digests[page] = b"%d" % self.next_digest
        assert self.pool.register(page, self.digests[page])

    @precondition(lambda self: set(self.references) - set(self.digests) and self.digests)
    @rule(data=st.data())
    def register_again(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(set(self.references) - set(self.digests))))
        digest = data.draw(st.sampled_from(sorted(self.digests.values())))
        assert not self.pool.register(page, digest)

    @precondition(lambda self: self.digests)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.digests)))
        self.pool.acquire([page])
        self.references.append(page)
        if page in self.lru:
            self.lru.remove(page)

    @invariant()
    def every_page_is_accounted_for(self) -> None:
        assert self.pool.num_used == len(set(self.references))
        assert self.pool.num_cached == len(self.lru)
        assert self.pool.num_free == self.NUM_BLOCKS - self.pool.num_used - len(self.lru)
        assert self.pool.num_available == self.pool.num_free + self.pool.num_cached
        for page, digest in self.digests.items():
            assert self.pool.find([digest]) == [page]


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
