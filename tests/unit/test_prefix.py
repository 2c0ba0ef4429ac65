"""PrefixHasher: a digest names all tokens before it, within one salt and one process."""

from __future__ import annotations

from inferx.memory.prefix import PrefixHasher


def chain_of(hasher: PrefixHasher, token_ids: list[int], num_pages: int, salt: str | None = None):
    chain = [hasher.root(salt)]
    hasher.extend(chain, token_ids, num_pages)
    return chain


def test_equal_prefixes_have_equal_digests_up_to_where_they_part() -> None:
    hasher = PrefixHasher(16)
    first = chain_of(hasher, list(range(48)), 3)
    second = chain_of(hasher, [*range(20), 99, *range(21, 48)], 3)
    assert first[:2] == second[:2]
    assert first[2] != second[2]
    assert first[3] != second[3], "a digest covers every token before it, not its page alone"


def test_a_chain_may_be_extended_piece_by_piece() -> None:
    hasher = PrefixHasher(16)
    tokens = list(range(64))
    whole = chain_of(hasher, tokens, 4)
    pieces = chain_of(hasher, tokens[:20], 1)
    hasher.extend(pieces, tokens, 3)
    hasher.extend(pieces, tokens, 3)
    hasher.extend(pieces, tokens, 2)
    hasher.extend(pieces, tokens, 4)
    assert pieces == whole


def test_a_large_page_has_the_digest_of_its_last_granule() -> None:
    small, large = PrefixHasher(16), PrefixHasher(64)
    large._key = small._key
    tokens = list(range(128))
    assert chain_of(large, tokens, 2)[1:] == chain_of(small, tokens, 8)[4::4]


def test_no_digest_is_shared_between_salts() -> None:
    hasher = PrefixHasher(16)
    salts = [None, "", "a", "b", "+", "+a"]
    chains = [chain_of(hasher, list(range(32)), 2, salt) for salt in salts]
    assert len({digest for chain in chains for digest in chain}) == 3 * len(salts)


def test_a_salt_may_hold_any_characters() -> None:
    hasher = PrefixHasher(16)
    assert hasher.root("\ud800") != hasher.root("\u00e9")


def test_any_integer_is_a_token() -> None:
    hasher = PrefixHasher(16)
    assert len(chain_of(hasher, [-1, 2**40] * 8, 1)) == 2


def test_digests_cannot_be_computed_without_the_process_key() -> None:
    tokens = list(range(16))
    assert chain_of(PrefixHasher(16), tokens, 1) != chain_of(PrefixHasher(16), tokens, 1)
