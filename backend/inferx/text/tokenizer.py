"""Tokenizer: text to ids and back, on the `tokenizers` library alone.

Transformers' AutoTokenizer imports torch, which Triton's stub has no room for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as HFTokenizer
from tokenizers.processors import TemplateProcessing

from inferx.errors import InvalidArgument
from inferx.source import ModelSource, load_error
from inferx.text.chat_template import ChatTemplate
from inferx.text.control_tokens import ControlTokens
from inferx.text.detokenizer import IncrementalDetokenizer
from inferx.text.token_bytes import UnsupportedTokenizer, token_bytes
from inferx.text.tokenizer_cache import cached_gguf_tokenizer
from inferx.text.tokenizer_files import TokenizerFiles, read_folder

# The library would start a thread a core for batches, and each of ours is of one text
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """One model's tokenizer; its methods may be called from several threads.

    `special_tokens` maps bos_token, eos_token, ... to their texts, as chat templates see them;
    `control` are all tokens that steer the model.
    """

    def __init__(self, files: TokenizerFiles, source: ModelSource) -> None:
        """Raises ModelLoadError."""
        tokenizer = _load(files.tokenizer_json, source)
        self.special_tokens = _special_tokens(files.config)
        _add_missing_tokens(tokenizer, files.config)
        _set_bos_and_eos(tokenizer, files.config, self.special_tokens, source)
        try:
            decoding = token_bytes(tokenizer)
        except UnsupportedTokenizer as error:
            raise load_error(source, str(error)) from None
        self._tokenizer = tokenizer
        self._literal: HFTokenizer | None = None
        self._lock = threading.Lock()
        self._decoding = decoding
        self.control = ControlTokens(tokenizer.get_added_tokens_decoder(), _unknown_id(tokenizer))
        self._visible_bytes = [
            b"" if token_id in self.control.ids else shown
            for token_id, shown in enumerate(decoding.by_id)
        ]
        self.vocab_size = len(decoding.by_id)
        self.max_token_bytes = max(map(len, decoding.by_id))
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        self.chat_template = (
            ChatTemplate(files.chat_templates, self.special_tokens)
            if files.chat_templates
            else None
        )

    @classmethod
    def from_source(cls, source: ModelSource) -> Tokenizer:
        """Of a Hugging Face folder, or rebuilt from a GGUF file's metadata.

        Raises ModelLoadError.
        """
        read = cached_gguf_tokenizer if source.format == "gguf" else read_folder
        return cls(read(source), source)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        parse_special_tokens: bool = True,
    ) -> list[int]:
        """Token ids. `add_special_tokens` puts BOS in front where the model wants it; without
        `parse_special_tokens`, the text of a control token is ordinary text.

        Raises InvalidArgument for text that has no tokens: unpaired surrogates, and characters
        of which the vocabulary lacks a byte, or which it has as a control token only.
        """
        self._check_expressible(text)
        if not parse_special_tokens:
            return self._encode_literally(text, add_special_tokens)
        return _encoding(self._tokenizer, text, add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole sequence, as `detokenizer` defines it."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens, prompt_token_ids=())
        return detokenizer.push(token_ids) + detokenizer.flush()

    def decode_prompt(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text that an output's `detokenizer` goes on from: a character that the prompt leaves
        incomplete is the output's."""
        return self.detokenizer(skip_special_tokens=skip_special_tokens, prompt_token_ids=()).push(
            token_ids
        )

    def detokenizer(
        self,
        *,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] | None = None,
    ) -> IncrementalDetokenizer:
        """For an output that follows this prompt; None: that follows some text."""
        return IncrementalDetokenizer(
            self._visible_bytes if skip_special_tokens else self._decoding.by_id,
            per_byte=self._decoding.per_byte,
            strips_first_space=self._decoding.strips_first_space,
            prompt_token_ids=prompt_token_ids,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """One token's bytes, special or not; none for an id that is no token."""
        by_id = self._decoding.by_id
        return by_id[token_id] if 0 <= token_id < len(by_id) else b""

    def token_text(self, token_id: int) -> str:
        """One token's text, special or not, U+FFFD for an incomplete character; "" for an id that
        is no token."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._tokenizer.token_to_id(token)

    def _check_expressible(self, text: str) -> None:
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"the text has an unpaired surrogate (U+{ord(text[error.start]):04X}) at "
                f"character {error.start}: send valid Unicode"
            ) from None
        missing = self._decoding.missing
        if len(data.translate(None, missing)) == len(data):
            return
        for index, character in enumerate(text):
            if not set(missing).isdisjoint(character.encode("utf-8")):
                raise InvalidArgument(
                    f"the text has the character U+{ord(character):04X} at character {index}, "
                    "which the model's vocabulary cannot express: remove it"
                )

    def _encode_literally(self, text: str, add_special_tokens: bool) -> list[int]:
        # The switch is state of the library's object, and other threads encode with it
        with self._lock:
            if self._literal is None:
                self._literal = HFTokenizer.from_str(self._tokenizer.to_str())
                self._literal.encode_special_tokens = True
        encoding = _encoding(self._literal, text, add_special_tokens)
        from_text = [
            token_id
            for token_id, is_added in zip(encoding.ids, encoding.special_tokens_mask, strict=True)
            if not is_added
        ]
        for token_id in self.control.among(from_text):
            raise InvalidArgument(
                f"the text has {self.token_text(token_id)!r}, which the model's vocabulary has "
                "as a control token only: remove it"
            )
        return encoding.ids


def _encoding(tokenizer: HFTokenizer, text: str, add_special_tokens: bool) -> Encoding:
    """As `encode` of the library, which would keep the interpreter for as long as it takes: 0.5 s
    for 128k tokens, in which no stream went on. The offsets that this one leaves out nobody needs.
    """
    (found,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return found


def _load(tokenizer_json: str, source: ModelSource) -> HFTokenizer:
    try:
        tokenizer = HFTokenizer.from_str(tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode("a")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise load_error(source, f"its tokenizer.json is not usable: {error}") from None
    return tokenizer


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Each is a string, or an object with the string as its content."""
    found = {}
    for name in _SPECIAL_TOKEN_NAMES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _add_missing_tokens(tokenizer: HFTokenizer, config: dict[str, Any]) -> None:
    """Adds what only tokenizer_config.json lists by its ids, as transformers does."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    missing = [
        AddedToken(token["content"], **{flag: bool(token.get(flag)) for flag in flags})
        # each gets the next id, and as text "10" would come before "9"
        for _, token in sorted(listed.items(), key=lambda item: (len(item[0]), item[0]))
        if isinstance(token, dict)
        and isinstance(token.get("content"), str)
        and token["content"] not in known
    ]
    tokenizer.add_tokens(missing)


def _set_bos_and_eos(
    tokenizer: HFTokenizer,
    config: dict[str, Any],
    special_tokens: dict[str, str],
    source: ModelSource,
) -> None:
    """tokenizer_config.json's add_bos_token and add_eos_token win over tokenizer.json, where they
    say whether prompts begin with BOS."""
    if not isinstance(config.get("add_bos_token"), bool):
        return
    bos = special_tokens.get("bos_token") if config["add_bos_token"] else None
    eos = special_tokens.get("eos_token") if config.get("add_eos_token") else None
    added = {token: tokenizer.token_to_id(token) for token in (bos, eos) if token is not None}
    for token, token_id in added.items():
        if token_id is None:
            raise load_error(source, f"its tokenizer lacks its own special token {token!r}")
    template = [piece for piece in (bos, "$A", eos) if piece is not None]
    tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=list(added.items())
    )


def _unknown_id(tokenizer: HFTokenizer) -> int | None:
    """What characters without a token become."""
    unknown = getattr(tokenizer.model, "unk_token", None)
    return None if unknown is None else tokenizer.token_to_id(unknown)
