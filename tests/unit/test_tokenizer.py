from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferx.errors import InvalidArgument, ModelLoadError
from inferx.source import ModelSource
from inferx.text.bad_words import bad_words_token_ids
from inferx.text.tokenizer import Tokenizer
from tokenizing import byte_fallback, smollm2, smollm2_characters, untimed

ALPHABET = [chr(0x100 + byte) if byte < 33 else chr(byte) for byte in range(127)]

_PIECES = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": _PIECES,
    "pair": _PIECES,
    "special_tokens": {"<s>": {"id": "<s>", "ids": [127], "tokens": ["<s>"]}},
}


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """Bytes of ASCII as a byte-level vocabulary (ids 0 to 126), then <s> and </s>."""
    special = [
        {"id": 127 + n, "content": text, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for n, text in enumerate(("<s>", "</s>"))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    vocab = {token: token_id for token_id, token in enumerate(ALPHABET)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level | {"use_regex": True},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        **changes,
    }


def in_folder(folder: Path, files: dict[str, Any]) -> Tokenizer:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return Tokenizer.from_source(ModelSource(folder, "huggingface", "tiny"))


def test_text_survives_encoding_and_decoding() -> None:
    for text in (
        "Hello, world!",
        "今天天气如何？",
        "🎉👩‍👩‍👧",
        "  x\n\n\ty  ",
        "12345",
        "a\0b",
        "",
    ):
        assert smollm2().decode(smollm2().encode(text)) == text


@untimed
@given(st.text(smollm2_characters))
def test_any_text_is_encoded_without_loss(text: str) -> None:
    token_ids = smollm2().encode(text, parse_special_tokens=False)
    assert smollm2().decode(token_ids) == text


def test_control_tokens_are_parsed_unless_that_is_turned_off() -> None:
    text = "a<|im_end|>"
    assert smollm2().encode(text) == [*smollm2().encode("a"), 2]
    literal = smollm2().encode(text, parse_special_tokens=False)
    assert smollm2().control.among(literal) == []
    assert smollm2().decode(literal, skip_special_tokens=False) == text


def test_threads_that_parse_and_threads_that_do_not_never_disturb_each_other() -> None:
    text = "x <|im_start|> y <|im_end|> " * 20
    parsed = smollm2().encode(text)
    literal = smollm2().encode(text, parse_special_tokens=False)
    wrong: list[bool] = []

    def work(parse: bool) -> None:
        for _ in range(100):
            ids = smollm2().encode(text, parse_special_tokens=parse)
            if ids != (parsed if parse else literal):
                wrong.append(parse)

    threads = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "named"),
    [("ab\ud800c", "U+D800) at character 2"), ("\U00040000", "U+40000"), ("x\x04", "U+0004")],
)
def test_text_that_has_no_tokens_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        smollm2().encode(text)
    assert named in str(raised.value)


def test_a_fallback_vocabulary_expresses_every_character() -> None:
    text = "hello é \x04 \U00040000"
    assert byte_fallback().decode(byte_fallback().encode(text)) == text


def test_unpaired_surrogates_are_refused_with_every_vocabulary() -> None:
    with pytest.raises(InvalidArgument, match="unpaired surrogate"):
        byte_fallback().encode("\udfff")


def test_bos_comes_first_where_the_model_wants_it(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True}
    tokenizer = in_folder(
        tmp_path, {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": config}
    )
    assert tokenizer.encode("A") == [127, ord("A")]
    assert tokenizer.encode("A", add_special_tokens=False) == [ord("A")]
    assert tokenizer.encode("A", parse_special_tokens=False) == [127, ord("A")]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (127, 128)


def test_tokenizer_config_decides_over_the_template_in_tokenizer_json(tmp_path: Path) -> None:
    files = {"tokenizer.json": tokenizer_json(post_processor=BOS_FIRST)}
    assert in_folder(tmp_path, files).encode("A") == [127, ord("A")]
    files["tokenizer_config.json"] = {"bos_token": "<s>", "add_bos_token": False}
    assert in_folder(tmp_path, files).encode("A") == [ord("A")]


@pytest.mark.parametrize("given", [{}, {"add_bos_token": None}, {"add_eos_token": False}])
def test_where_tokenizer_config_does_not_speak_of_bos_tokenizer_json_decides(
    given: dict[str, Any], tmp_path: Path
) -> None:
    files = {
        "tokenizer.json": tokenizer_json(post_processor=BOS_FIRST),
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", **given},
    }
    assert in_folder(tmp_path, files).encode("A") == [127, ord("A")]


def test_listed_tokens_have_their_ids_whatever_order_they_are_listed_in(tmp_path: Path) -> None:
    listed = {"130": {"content": "<b>", "special": True}, "129": {"content": "<a>"}}
    files = {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"added_tokens_decoder": listed},
    }
    assert in_folder(tmp_path, files).encode("<a><b>") == [129, 130]


def test_an_id_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    vocab = {token: token_id for token_id, token in enumerate(ALPHABET)} | {"far": 2**32 - 1}
    files = {"tokenizer.json": tokenizer_json(model={"type": "BPE", "vocab": vocab, "merges": []})}
    with pytest.raises(ModelLoadError, match="tokenizer has the token id 4294967295"):
        in_folder(tmp_path, files)


def test_a_tokenizer_without_tokens_is_refused(tmp_path: Path) -> None:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    files = {"tokenizer.json": tokenizer_json(model=empty, added_tokens=[])}
    with pytest.raises(ModelLoadError, match=r": its tokenizer has no tokens$"):
        in_folder(tmp_path, files)


def test_tokens_that_only_tokenizer_config_lists_are_added(tmp_path: Path) -> None:
    listed = {"129": {"content": "<|im_end|>", "special": True}, "127": {"content": "<s>"}}
    tokenizer = in_folder(
        tmp_path,
        {
            "tokenizer.json": tokenizer_json(),
            "tokenizer_config.json": {"added_tokens_decoder": listed},
        },
    )
    assert tokenizer.encode("<|im_end|>") == [129]
    assert tokenizer.vocab_size == 130


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"}
    tokenizer = in_folder(
        tmp_path, {"tokenizer.json": tokenizer_json(truncation=truncation, padding=padding)}
    )
    assert tokenizer.encode("ABCD") == [*b"ABCD"]


def test_templates_of_their_own_files_win_over_tokenizer_config(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]
    files: dict[str, Any] = {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"chat_template": named},
    }
    message = {"role": "user", "content": "x"}
    tokenizer = in_folder(tmp_path, files)
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([message]) == "old"
    assert tokenizer.chat_template.render([message], tools=[{}]) == "tools"
    files["chat_template.jinja"] = "new"
    files["additional_chat_templates/tool_use.jinja"] = "new tools"
    tokenizer = in_folder(tmp_path, files)
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([message]) == "new"
    assert tokenizer.chat_template.render([message], tools=[{}]) == "new tools"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "model 'tiny': its folder has no tokenizer.json"),
        ({"tokenizer.json": "{"}, "model 'tiny': its tokenizer.json is not usable"),
        ({"tokenizer.json": tokenizer_json(normalizer={"type": "Precompiled"}
          | {"precompiled_charsmap": "AAAA"})}, "its tokenizer.json is not usable"),
        ({"tokenizer.json": tokenizer_json(decoder=None)}, "has no decoder"),
        ({"tokenizer.json": tokenizer_json(decoder={"type": "CTC", "pad_token": "p"}
          | {"word_delimiter_token": "|", "cleanup": True})}, "the step 'CTC'"),
        ({"tokenizer.json": tokenizer_json(), "tokenizer_config.json": "["}, "is not JSON"),
        ({"tokenizer.json": tokenizer_json(), "tokenizer_config.json": []}, "no JSON object"),
        (
            {
                "tokenizer.json": tokenizer_json(),
                "tokenizer_config.json": {"bos_token": "<b>", "add_bos_token": True},
            },
            "lacks its own special token '<b>'",
        ),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cannot_be_used_fails_the_load_in_one_sentence(
    tmp_path: Path, files: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelLoadError) as raised:
        in_folder(tmp_path, files)
    assert problem in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


def test_bad_words_are_spelled_as_they_begin_a_text_and_as_they_follow_a_space() -> None:
    encode = smollm2().encode
    spelled = bad_words_token_ids(smollm2(), ["  hello", "supercalifragilistic"])
    assert spelled[:2] == (tuple(encode("hello")), tuple(encode(" hello")))
    assert spelled[2] == tuple(encode("supercalifragilistic"))
    with pytest.raises(InvalidArgument, match="bad_words"):
        bad_words_token_ids(smollm2(), [" "])


def test_neither_torch_nor_transformers_nor_jinja_is_loaded() -> None:
    code = (
        "import sys; from inferx.text import stream, chat; "
        "print(*sorted({'torch', 'transformers', 'jinja2'} & set(sys.modules)))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"


@pytest.mark.parametrize("parse_special_tokens", [True, False])
def test_other_threads_go_on_while_a_long_text_is_encoded(parse_special_tokens: bool) -> None:
    """Those that send streams."""
    tokenizer, text = smollm2(), "hello world " * 60_000
    tokenizer.encode("", parse_special_tokens=parse_special_tokens)  # makes what it needs
    going, ended, turns = threading.Event(), threading.Event(), 0

    def other() -> None:
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1
            going.set()

    thread = threading.Thread(target=other)
    thread.start()
    going.wait()
    before = turns
    tokenizer.encode(text, parse_special_tokens=parse_special_tokens)
    during = turns - before
    ended.set()
    thread.join()
    assert during > 5
