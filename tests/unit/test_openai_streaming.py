"""Deltas merge while their client is slow; events are OpenAI's, byte for byte."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from inferx.entrypoints.openai.answer import DONE
from inferx.entrypoints.openai.backlog import Backlog, Overflow, Part
from inferx.entrypoints.openai.chat import ChatAnswer
from inferx.entrypoints.openai.generation import Usage
from inferx.entrypoints.openai.protocol import chat_request
from inferx.entrypoints.openai.turns import Turns
from inferx_client import Delta


def parsed(events: bytes) -> list[dict[str, Any]]:
    assert events.endswith(b"\n\n")
    lines = events.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def answer(**fields: Any) -> ChatAnswer:
    messages = [{"role": "user", "content": "hi"}]
    request = chat_request({"model": "m", "messages": messages, "stream": True, **fields})
    return ChatAnswer(request, tokenizer=None)  # type: ignore[arg-type]


def test_parts_are_merged_in_order_and_taken_once() -> None:
    backlog = Backlog(limit=1000)
    for choice, text in ((0, "a"), (1, "x"), (0, "b")):
        backlog.put(choice, Delta(text))
    backlog.put(1, Delta("y", finish_reason="stop", logprobs=[{"2": {}}]))
    assert backlog.take() == [Part(0, "ab"), Part(1, "xy", [{"2": {}}], "stop")]
    assert backlog.take() == []


def test_an_overflow_drops_what_waits_and_is_what_the_taker_hears() -> None:
    backlog = Backlog(limit=10)
    backlog.put(0, Delta("0123456789"))
    with pytest.raises(Overflow):
        backlog.put(1, Delta("0"))
    backlog.fail(ValueError())  # what comes of it, such as a client that leaves
    for _ in range(2):
        with pytest.raises(Overflow):
            backlog.take()


def test_only_what_waits_counts_for_an_overflow() -> None:
    backlog = Backlog(limit=300)
    for _ in range(3):
        backlog.put(0, Delta("0" * 300))
        assert backlog.take() == [Part(0, "0" * 300)]
        backlog.put(0, Delta("0" * 44, logprobs=[{"1": {}}]))  # 256 for a token of an entry
        assert backlog.take() == [Part(0, "0" * 44, [{"1": {}}])]
    with pytest.raises(Overflow):
        backlog.put(0, Delta("0" * 45, logprobs=[{"1": {}}]))


def test_a_taker_waits_for_a_delta_the_end_or_a_failure() -> None:
    async def run() -> list[Any]:
        heard: list[Any] = []
        backlog = Backlog(limit=100)

        async def taker() -> None:
            try:
                while True:
                    await backlog.filled()
                    heard.append([part.text for part in backlog.take()])
            except ValueError:
                heard.append("failed")

        task = asyncio.ensure_future(taker())
        await asyncio.sleep(0)
        backlog.put(0, Delta("a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        backlog.put(0, Delta("b"))
        backlog.put(0, Delta("c"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        backlog.fail(ValueError())
        await task
        return heard

    assert asyncio.run(run()) == [["a"], ["bc"], "failed"]


def test_the_first_event_of_a_choice_has_the_role_and_the_last_its_reason() -> None:
    chat = answer()
    first, other = parsed(chat.events([Part(0, "a"), Part(1, "x")]))
    assert first == {
        "id": chat.id,
        "object": "chat.completion.chunk",
        "created": first["created"],
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "a"},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    assert other["choices"][0]["delta"] == {"role": "assistant", "content": "x"}
    (last,) = parsed(chat.events([Part(0, "\n\nb", finish_reason="length")]))
    assert last["choices"][0]["delta"] == {"content": "\n\nb"}
    assert last["choices"][0]["finish_reason"] == "length"
    assert chat.ending(Usage(1, 2)) == DONE


def test_usage_is_an_event_of_its_own_when_it_is_asked_for() -> None:
    chat = answer(stream_options={"include_usage": True})
    assert parsed(chat.events([Part(0, "a")]))[0]["usage"] is None
    ending = chat.ending(Usage(5, 4, 2))
    assert ending.endswith(DONE)
    (last,) = parsed(ending.removesuffix(DONE))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


def test_all_that_wait_get_the_same_turn() -> None:
    async def run() -> list[str]:
        turns, order = Turns(), []

        async def sender(name: str) -> None:
            for number in range(2):
                await turns.wait()
                order.append(f"{name}{number}")

        await asyncio.gather(sender("a"), sender("b"))
        return order

    assert asyncio.run(run()) == ["a0", "b0", "a1", "b1"]


def test_a_turn_comes_also_when_none_was_wanted_for_a_while() -> None:
    async def run() -> None:
        turns = Turns()
        for _ in range(3):
            await asyncio.wait_for(turns.wait(), 10)
            for _ in range(5):
                await asyncio.sleep(0)

    asyncio.run(run())


def test_a_turn_does_not_wait_for_one_that_left() -> None:
    async def run() -> None:
        turns = Turns()
        gone = asyncio.ensure_future(turns.wait())
        await asyncio.sleep(0)
        gone.cancel()
        await turns.wait()

    asyncio.run(run())
