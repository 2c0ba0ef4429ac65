"""SamplingParams: how the next token is chosen, validated once at the door.

Names, meanings and defaults follow vLLM's SamplingParams, because its Triton backend's clients
send them. A client may send numbers and booleans as strings (genai-perf does).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferx.errors import InvalidArgument, shown, unknown_name

MAX_N = 64
MAX_LOGPROBS = 20
MAX_STOP = 64
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 128  # the sampler compares all words, as long as the longest, each step
MAX_CACHE_SALT_LENGTH = 256
GREEDY_TEMPERATURE = 1e-5  # below it, a softmax is one-hot in fp32: choose the maximum instead
_INT32 = 2**31 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request's sampling settings. `parse` makes a valid one out of a client's mapping."""

    n: int = 1
    max_tokens: int | None = 16  # None: as many as the model's length leaves
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over the output
    frequency_penalty: float = 0.0  # over the output
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; 0: the sampled token's; k: the k likeliest besides
    logit_bias: dict[int, float] = {}
    bad_words: tuple[str, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # made of bad_words by the tokenizer
    skip_special_tokens: bool = True
    priority: int = 0  # lower runs first
    sparsity: str | float | None = None  # off | auto | a ratio in [0, 1); None: the model's
    cache_salt: str | None = None  # prefix pages are shared only within one salt

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> SamplingParams:
        """Validated parameters out of a client's mapping.

        Raises InvalidArgument, naming the parameter, the value and the bound.
        """
        values = {}
        for name, value in given.items():
            reader = _READERS.get(name)
            if reader is None:
                raise InvalidArgument(unknown_name("sampling parameter", name, _READERS))
            if value is not None:
                values[name] = reader(name, value)
            elif name == "max_tokens":  # no other default is something else than null
                values[name] = None
        params = cls(**values)
        if params.max_tokens is not None and params.min_tokens > params.max_tokens:
            raise InvalidArgument(
                f"min_tokens is {params.min_tokens}: it must not exceed max_tokens, "
                f"which is {params.max_tokens}"
            )
        return params

    def validated(self) -> SamplingParams:
        """The same parameters, for those that were not made by `parse`. Raises InvalidArgument."""
        return self.parse({name: getattr(self, name) for name in _READERS})


def _wrong(name: str, value: Any, expected: str) -> InvalidArgument:
    return InvalidArgument(f"{name} is {shown(value)}: expected {expected}")


def integer_between(low: int, high: int) -> Any:
    bound = f"an integer between {low} and {high}"

    def read(name: str, value: Any) -> int:
        number = value
        if isinstance(value, str):
            try:
                number = int(value.strip())
            except ValueError:
                raise _wrong(name, value, bound) from None
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
            raise _wrong(name, value, bound)
        return number

    return read


def _number(low: float, high: float, *, above: bool = False) -> Any:
    """A float in [low, high], or in (low, high] where `above`."""
    bound = f"a number {'above' if above else 'between'} {low:g} and {'at most' if above else ''}"
    bound = " ".join(f"{bound} {high:g}".split())

    def read(name: str, value: Any) -> float:
        number = value
        if isinstance(value, str):
            try:
                number = float(value.strip())
            except ValueError:
                raise _wrong(name, value, bound) from None
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise _wrong(name, value, bound)
        if not low <= number <= high or (above and number == low):  # not so for NaN either
            raise _wrong(name, value, bound)
        return float(number)

    return read


def read_boolean(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false", "1", "0"):
        return value.strip().lower() in ("true", "1")
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise _wrong(name, value, "true or false")


def _strings(limit: int, length: int) -> Any:
    expected = f"a non-empty string or a list of at most {limit}, each up to {length} characters"

    def read(name: str, value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple) or len(items) > limit:
            raise _wrong(name, value, expected)
        for item in items:
            if not isinstance(item, str) or not 0 < len(item) <= length:
                raise _wrong(name, value, expected)
            _refuse_surrogates(name, item)
        return tuple(items)

    return read


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    expected = f"a list of at most {MAX_STOP_TOKEN_IDS} token ids"
    if not isinstance(value, list | tuple) or len(value) > MAX_STOP_TOKEN_IDS:
        raise _wrong(name, value, expected + " (lists go into the sampling_parameters JSON)")
    read = integer_between(0, _INT32)
    return tuple(read(name, item) for item in value)


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    expected = f"an object of at most {MAX_LOGIT_BIAS} token ids to numbers between -100 and 100"
    if not isinstance(value, Mapping) or len(value) > MAX_LOGIT_BIAS:
        raise _wrong(name, value, expected)
    token, bias = integer_between(0, _INT32), _number(-100, 100)
    return {token(name, key): bias(name, item) for key, item in value.items()}


def _top_k(name: str, value: Any) -> int:
    return max(0, integer_between(-1, 2**63 - 1)(name, value))


def _logprobs(name: str, value: Any) -> int | None:
    """vLLM takes a count; OpenAI's chat takes a boolean, true for the sampled token's."""
    if isinstance(value, bool) or (isinstance(value, str) and value.lower() in ("true", "false")):
        return 0 if read_boolean(name, value) else None
    return integer_between(0, MAX_LOGPROBS)(name, value)


def _sparsity(name: str, value: Any) -> str | float:
    if isinstance(value, str) and value in ("off", "auto"):
        return value
    try:
        ratio = _number(0, 1)(name, value)
    except InvalidArgument:
        ratio = 1.0
    if ratio >= 1:
        raise _wrong(name, value, '"off", "auto" or a ratio of at least 0 and below 1')
    return ratio


def _salt(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_CACHE_SALT_LENGTH:
        raise _wrong(name, value, f"a non-empty string of up to {MAX_CACHE_SALT_LENGTH} characters")
    _refuse_surrogates(name, value)
    return value


def _refuse_surrogates(name: str, text: str) -> None:
    """Half a character, which JSON can spell and UTF-8, hence the wire to the engine, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _wrong(name, text, "valid Unicode, and this has an unpaired surrogate") from None


_READERS: dict[str, Any] = {
    "n": integer_between(1, MAX_N),
    "max_tokens": integer_between(1, _INT32),
    "min_tokens": integer_between(0, _INT32),
    "temperature": _number(0, 100),
    "top_p": _number(0, 1, above=True),
    "top_k": _top_k,
    "min_p": _number(0, 1),
    "repetition_penalty": _number(0.01, 100),  # times 100, logits stay far from fp32's infinity
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "seed": integer_between(-(2**63), 2**63 - 1),
    "stop": _strings(MAX_STOP, MAX_STOP_LENGTH),
    "stop_token_ids": _token_ids,
    "include_stop_str_in_output": read_boolean,
    "ignore_eos": read_boolean,
    "logprobs": _logprobs,
    "logit_bias": _logit_bias,
    "bad_words": _strings(MAX_BAD_WORDS, MAX_BAD_WORD_LENGTH),
    "skip_special_tokens": read_boolean,
    "priority": integer_between(-_INT32, _INT32),
    "sparsity": _sparsity,
    "cache_salt": _salt,
}
