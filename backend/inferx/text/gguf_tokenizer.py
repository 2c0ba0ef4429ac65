"""The tokenizer in a GGUF file's metadata, as the tokenizer.json that it was made from.

Two kinds exist for the models that are served: byte-level BPE (`gpt2`), rebuilt exactly, and
SentencePiece BPE with byte fallback (`llama`), whose merges are ranked by the pieces' scores as
SentencePiece ranks them; pieces of equal score may be joined in another order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from inferx.gguf_file import GGUFError, read_gguf
from inferx.source import ModelSource, load_error
from inferx.text.gguf_pretokenizers import PRE_TOKENIZERS
from inferx.text.tokenizer_files import TokenizerFiles

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"  # SentencePiece writes a space so
_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


class _Vocabulary(NamedTuple):
    """`tokens` and `types` by token id; the other fields are the metadata's entries."""

    tokens: list[str]
    types: list[int]
    scores: list[float] | None
    merges: list[str] | None
    entries: dict[str, Any]  # tokenizer.ggml.*, without the prefix


def read_gguf_tokenizer(source: ModelSource) -> TokenizerFiles:
    """Raises ModelLoadError, also for a kind of tokenizer that cannot be rebuilt."""
    try:
        metadata = read_gguf(source.path).metadata
    except GGUFError as error:
        raise load_error(source, str(error)) from None
    except OSError as error:
        raise load_error(source, f"the file cannot be read: {error.strerror}") from None
    return tokenizer_from_metadata(source, metadata)


def tokenizer_from_metadata(source: ModelSource, metadata: dict[str, Any]) -> TokenizerFiles:
    """`metadata` is a GGUF header's. Raises ModelLoadError."""
    prefix = "tokenizer.ggml."
    entries = {k[len(prefix) :]: v for k, v in metadata.items() if k.startswith(prefix)}
    vocabulary = _vocabulary(source, entries)
    kind = entries.get("model")
    if kind == "gpt2":
        tokenizer, add_bos = _byte_level_bpe(source, vocabulary)
    elif kind == "llama":
        tokenizer, add_bos = _sentencepiece_bpe(source, vocabulary), True
    else:
        raise load_error(
            source,
            f"its tokenizer is of the kind {kind!r}: 'gpt2' and 'llama' are read from GGUF files; "
            "give a Hugging Face folder with a tokenizer.json in the setting 'tokenizer'",
        )
    config: dict[str, Any] = {
        "add_bos_token": bool(entries.get("add_bos_token", add_bos)),
        "add_eos_token": bool(entries.get("add_eos_token", False)),
    }
    for name, key in _SPECIAL_TOKENS.items():
        token_id = entries.get(key)
        if isinstance(token_id, int) and 0 <= token_id < len(vocabulary.tokens):
            config[name] = vocabulary.tokens[token_id]
    template = metadata.get("tokenizer.chat_template")
    templates = {"default": template} if isinstance(template, str) else {}
    return TokenizerFiles(json.dumps(tokenizer, ensure_ascii=False), config, templates)


def _vocabulary(source: ModelSource, entries: dict[str, Any]) -> _Vocabulary:
    tokens = _entry(source, entries, "tokens", str)
    if not tokens:
        raise load_error(source, "the file holds no tokenizer (tokenizer.ggml.tokens is missing)")
    types = _entry(source, entries, "token_type", int) or [_NORMAL] * len(tokens)
    scores = _entry(source, entries, "scores", float)
    if len(types) != len(tokens) or (scores is not None and len(scores) != len(tokens)):
        raise load_error(source, "the file's tokens, their types and their scores differ in number")
    return _Vocabulary(tokens, types, scores, _entry(source, entries, "merges", str), entries)


def _entry(source: ModelSource, entries: dict[str, Any], name: str, kind: type) -> Any:
    values = entries.get(name)
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise load_error(source, f"the file's entry tokenizer.ggml.{name} is damaged")
    return values


def _byte_level_bpe(source: ModelSource, vocabulary: _Vocabulary) -> tuple[dict[str, Any], bool]:
    """The tokenizer.json, and whether prompts begin with BOS where the file does not say."""
    name = vocabulary.entries.get("pre", "default")
    pre = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if pre is None:
        raise load_error(
            source,
            f"its tokenizer cuts words as {name!r} does, which is not known here (known: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}); give a Hugging Face folder with a "
            "tokenizer.json in the setting 'tokenizer'",
        )
    # Unused entries only fill the embedding up to a round number of rows
    vocab = {
        token: token_id
        for token_id, (token, kind) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, strict=True)
        )
        if kind != _UNUSED
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    model = _bpe(vocab, _given_merges(source, vocabulary), ignore_merges=pre.ignore_merges)
    tokenizer = _tokenizer_json(
        model,
        _added_tokens(vocabulary, special=(_CONTROL, _UNKNOWN)),
        normalizer=pre.normalizer,
        pre_tokenizer=pre.pre_tokenizer,
        decoder=byte_level,
    )
    return tokenizer, pre.add_bos


def _sentencepiece_bpe(source: ModelSource, vocabulary: _Vocabulary) -> dict[str, Any]:
    vocab = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    if vocabulary.merges:
        merges = _given_merges(source, vocabulary)
    elif vocabulary.scores is not None:
        merges = _merges_by_score(vocabulary)
    else:
        raise load_error(source, "the file's tokenizer has neither scores nor merges")
    unknown = [t for t, k in zip(vocabulary.tokens, vocabulary.types, strict=True) if k == _UNKNOWN]
    spaces: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    ]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if vocabulary.entries.get("add_space_prefix", True):
        spaces.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = _bpe(
        vocab,
        merges,
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=_BYTE in vocabulary.types,
    )
    return _tokenizer_json(
        model,
        _added_tokens(vocabulary, special=(_CONTROL, _UNKNOWN)),
        normalizer={"type": "Sequence", "normalizers": spaces},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _given_merges(source: ModelSource, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    merges = []
    for merge in vocabulary.merges or ():
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise load_error(source, f"the file's tokenizer has the broken merge {merge[:40]!r}")
        merges.append((left, right))
    return merges


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best result first.

    SentencePiece joins the neighbours whose piece has the highest score; control, unknown and
    byte pieces take no part (`bpe_model.cc`).
    """
    assert vocabulary.scores is not None
    pieces = {
        token: score
        for token, kind, score in zip(
            vocabulary.tokens, vocabulary.types, vocabulary.scores, strict=True
        )
        if kind in (_NORMAL, _UNUSED)
    }
    ranked = [
        (-score, -cut, piece[:cut], piece[cut:])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    ranked.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in ranked]


def _added_tokens(vocabulary: _Vocabulary, special: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "id": token_id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind in special,
        }
        for token_id, (token, kind) in enumerate(
            zip(vocabulary.tokens, vocabulary.types, strict=True)
        )
        if kind in special or kind == _USER_DEFINED
    ]


def _bpe(vocab: dict[str, int], merges: list[tuple[str, str]], **settings: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        **settings,
        "vocab": vocab,
        "merges": merges,
    }


def _tokenizer_json(
    model: dict[str, Any],
    added_tokens: list[dict[str, Any]],
    *,
    normalizer: dict[str, Any] | None,
    pre_tokenizer: dict[str, Any] | None,
    decoder: dict[str, Any],
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
