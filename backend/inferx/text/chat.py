"""Chat messages to token ids, with control tokens only where the template wrote them.

A control token is a text like "<|im_end|>" that the tokenizer finds in what it encodes, and a
message may contain that text. So the places where a control token begins in a client's strings
are disguised before the template is rendered: the first character is exchanged for one of a
private-use plane that occurs nowhere else. What is found in the rendered text then is the
template's own. It is tokenized as it is where nothing was disguised, so such chats give the ids
that transformers' apply_chat_template gives, and else stretch by stretch, undisguised, as
ordinary text.

Pieces of a control token can be harmless apart and come together in the template. So the chat is
rendered a second time with every such first character disguised, wherever it is; if the control
tokens of the two differ, the second rendering is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from inferx.errors import InvalidArgument
from inferx.text.messages import Chat, check_chat
from inferx.text.tokenizer import Tokenizer

_PRIVATE_USE = range(0xF0000, 0xFFFFE)  # Supplementary Private Use Area-A


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **variables: Any,
) -> list[int]:
    """The prompt's token ids. Raises InvalidArgument, as `ChatTemplate.render` does."""
    template = tokenizer.chat_template
    if template is None:
        raise InvalidArgument("the model has no chat template: send a prompt instead of messages")
    chat = check_chat(messages, tools, variables)

    def render(chat: Chat) -> str:
        return template.render_chat(chat, add_generation_prompt=add_generation_prompt)

    stand_ins = _stand_ins(tokenizer, chat)
    text = _render_disguised(tokenizer, chat, stand_ins, render) if stand_ins else render(chat)
    if not any(stand_in in text for stand_in in stand_ins.values()):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        if tokenizer.control.among(token_ids) == tokenizer.control.ids_in(text):
            return token_ids
    return _encode_apart(tokenizer, text, stand_ins)


def _stand_ins(tokenizer: Tokenizer, chat: Chat) -> dict[str, str]:
    """For each character with which a control token begins and that the client uses, a character
    that the client does not use."""
    strings = "".join(_strings([chat.messages, chat.tools, chat.variables]))
    begun = sorted(tokenizer.control.first_characters.intersection(strings))
    used = set(strings) if begun else set()
    unused = (character for character in map(chr, _PRIVATE_USE) if character not in used)
    try:
        return {character: next(unused) for character in begun}
    except StopIteration:
        raise InvalidArgument("the messages use a whole plane of private-use characters") from None


def _render_disguised(
    tokenizer: Tokenizer, chat: Chat, stand_ins: Mapping[str, str], render: Callable[[Chat], str]
) -> str:
    control = tokenizer.control
    text = render(_mapped(chat, lambda string: control.disguise(string, stand_ins)))
    # Letters and digits are left alone: without them, names that the template looks for are gone
    table = str.maketrans({c: stand_in for c, stand_in in stand_ins.items() if not c.isalnum()})
    cautious = render(_mapped(chat, lambda string: string.translate(table)))
    return text if control.ids_in(text) == control.ids_in(cautious) else cautious


def _encode_apart(tokenizer: Tokenizer, text: str, stand_ins: Mapping[str, str]) -> list[int]:
    """Control tokens by their ids; what stands between them as ordinary text."""
    table = str.maketrans({stand_in: character for character, stand_in in stand_ins.items()})
    token_ids: list[int] = []
    begin, strip_left = 0, False

    def add_stretch(end: int, strip_right: bool) -> None:
        stretch = text[begin:end].translate(table)
        stretch = stretch.lstrip() if strip_left else stretch
        stretch = stretch.rstrip() if strip_right else stretch
        token_ids.extend(
            tokenizer.encode(stretch, add_special_tokens=False, parse_special_tokens=False)
        )

    for found in tokenizer.control.find(text):
        add_stretch(found.start, found.lstrip)
        token_ids.append(found.token_id)
        begin, strip_left = found.end, found.rstrip
    add_stretch(len(text), False)
    return token_ids


def _mapped(chat: Chat, change: Callable[[str], str]) -> Chat:
    """The chat with its strings changed, except for the roles, which are known words."""

    def mapped(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [mapped(item) for item in value]
        if isinstance(value, dict):
            return {change(key): mapped(item) for key, item in value.items()}
        return value

    messages = [{**mapped(message), "role": message["role"]} for message in chat.messages]
    return Chat(messages, mapped(chat.tools), mapped(chat.variables))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
