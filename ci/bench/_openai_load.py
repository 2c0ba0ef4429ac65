"""The load of `_grpc_load` on the OpenAI endpoint: completions as server-sent events, over sockets
that are kept. `run_load(load, processes, _openai_load.__file__)` runs this file."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from _grpc_load import Answer, Load, Share

END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
_FIRST = b"data: {"
_COMPLETE = b'"finish_reason":"length"'


def request(load: Load) -> bytes:
    """As it goes over the socket."""
    body = {
        "model": load.model,
        "prompt": load.prompt,
        "max_tokens": load.max_tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {load.url}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class OpenAIStream(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._transport: asyncio.Transport | None = None
        self._tail = b""
        self._started = self._first = 0.0
        self._answer: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def ask(self, request: bytes) -> Answer:
        """Raises RuntimeError with an answer that is no stream."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._tail, self._first = b"", 0.0
        self._started = time.monotonic()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        assert self._answer is not None
        if self._answer.done():  # the load has ended
            return
        if not self._first:
            if self._tail == b"" and not data.startswith(b"HTTP/1.1 200"):
                self._answer.set_exception(RuntimeError(data.decode(errors="replace")))
                return
            if _FIRST in self._tail + data:
                self._first = now
        self._tail = (self._tail + data)[-1024:]
        if self._tail.endswith(END):
            tokens = self._max_tokens if _COMPLETE in self._tail else 0
            self._answer.set_result(Answer(self._started, self._first, now, tokens))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(f"the connection ended: {error}"))


async def opened(load: Load) -> OpenAIStream:
    host, _, port = load.url.rpartition(":")
    loop = asyncio.get_running_loop()
    made = await loop.create_connection(lambda: OpenAIStream(load.max_tokens), host, int(port))
    return made[1]


async def _run(share: Share) -> list[Answer]:
    answers: list[Answer] = []
    message = request(share.load)
    past_end: set[int] = set()
    all_past_end = asyncio.Event()

    async def stream(number: int) -> None:
        connection = await opened(share.load)
        while not all_past_end.is_set():
            answer = await connection.ask(message)
            if answer.tokens != share.load.max_tokens:
                raise RuntimeError(f"a request brought {answer.tokens} tokens")
            answers.append(answer)
            if answer.ended >= share.end:
                past_end.add(number)
                if len(past_end) == share.streams:
                    all_past_end.set()

    await asyncio.sleep(share.begin - time.monotonic())
    streams = [asyncio.ensure_future(stream(number)) for number in range(share.streams)]
    try:
        await asyncio.gather(*streams)
    finally:
        for task in streams:
            task.cancel()
    return answers


def _main() -> None:
    given = json.loads(sys.stdin.read())
    try:
        answers = asyncio.run(_run(Share(**{**given, "load": Load(**given["load"])})))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    else:
        print(json.dumps({"answers": answers}))


if __name__ == "__main__":
    _main()
