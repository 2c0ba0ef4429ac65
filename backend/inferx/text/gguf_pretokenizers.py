"""How text is cut before byte-level BPE, by the name that a GGUF file gives in
`tokenizer.ggml.pre`.

A GGUF file carries the name only. The regular expressions are those of the model families' own
tokenizer.json files; the names, and which families look a whole word up before they merge, are
llama.cpp's (`llama-vocab.cpp`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_NON_WORDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _NON_WORDS
)
_QWEN2 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _NON_WORDS
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _NON_WORDS
)


class PreTokenizer(NamedTuple):
    """The parts of a tokenizer.json that a name stands for."""

    pre_tokenizer: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False  # a word that is in the vocabulary is one token, merges or not
    add_bos: bool = False  # where the file does not say


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split(regex: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": regex},
        "behavior": "Isolated",
        "invert": False,
    }


def _sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _by_regex(regex: str) -> dict[str, Any]:
    return _sequence(_split(regex), _byte_level(use_regex=False))


_SINGLE_DIGITS = PreTokenizer(
    _sequence({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True))
)
_LLAMA3_LIKE = PreTokenizer(_by_regex(_LLAMA3), ignore_merges=True, add_bos=True)
_QWEN2_WORDS = _by_regex(_QWEN2)

# What llama.cpp does for files without a name or with the name "default"; no family's own.
_DEFAULT = PreTokenizer(
    _sequence(
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _byte_level(use_regex=False),
    )
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": PreTokenizer(_byte_level(use_regex=True)),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama3": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "llama-bpe": _LLAMA3_LIKE,
    "falcon3": _LLAMA3_LIKE,
    "qwen2": PreTokenizer(_QWEN2_WORDS, normalizer={"type": "NFC"}),
    "deepseek-r1-qwen": PreTokenizer(_QWEN2_WORDS),
    "tekken": PreTokenizer(_by_regex(_TEKKEN), ignore_merges=True, add_bos=True),
}
