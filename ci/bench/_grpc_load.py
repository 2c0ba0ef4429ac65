"""Closed-loop load over gRPC from several processes, light enough for one of them to keep up.

`run_load` starts the processes; each runs this file, reads its Share as JSON and writes what its
requests brought. All times are seconds of the monotonic clock, which the processes share.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
START = 2.0  # seconds that the processes get for their imports


@dataclass(frozen=True)
class Load:
    """`streams` requests in flight, counted for `seconds` after `warm_up` seconds."""

    url: str
    model: str
    prompt: str
    max_tokens: int
    stream: bool
    streams: int
    warm_up: float
    seconds: float


@dataclass(frozen=True)
class Share:
    """One process's part of a load."""

    load: Load
    streams: int
    begin: float  # when the first requests leave
    end: float  # when the counted time ends


class Answer(NamedTuple):
    started: float
    first: float  # the first token's arrival
    ended: float
    tokens: int


class Figures(NamedTuple):
    answers: list[Answer]  # of requests that ran in the counted time
    begin: float
    end: float

    @property
    def requests_per_second(self) -> float:
        """Each request counts by the share of its life that lies in the counted time, so that
        requests which run in step do not count by chance once more or less."""
        return sum(map(self._share, self.answers)) / (self.end - self.begin)

    @property
    def tokens_per_second(self) -> float:
        tokens = sum(self._share(answer) * answer.tokens for answer in self.answers)
        return tokens / (self.end - self.begin)

    def _share(self, answer: Answer) -> float:
        inside = min(answer.ended, self.end) - max(answer.started, self.begin)
        return inside / (answer.ended - answer.started)


def run_load(load: Load, processes: int, program: str = __file__) -> Figures:
    """`program` reads a Share and writes answers as this file does.

    Raises RuntimeError with the message of a process whose requests failed.
    """
    processes = min(processes, load.streams)
    begin = time.monotonic() + START
    end = begin + load.warm_up + load.seconds
    running = []
    for index in range(processes):
        streams = load.streams // processes + (index < load.streams % processes)
        process = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(Share(load, streams, begin, end))))
        process.stdin.close()
        running.append(process)
    answers = []
    for process in running:
        assert process.stdout is not None
        said = json.loads(process.stdout.read() or '{"error": "a load process died"}')
        process.wait()
        if "error" in said:
            raise RuntimeError(said["error"])
        answers += [Answer(*answer) for answer in said["answers"]]
    counted = [a for a in answers if a.ended > begin + load.warm_up and a.started < end]
    return Figures(counted, begin + load.warm_up, end)


class _Loop:
    """Every stream goes on until all have seen the end, so that the load stays to the last, and
    then to the end of its answer: tritonserver 2.51 may end with signal 11 when many are cancelled.
    """

    def __init__(self, share: Share) -> None:
        from inferx_client.wire import generate_request
        from tritonclient.grpc import service_pb2

        load = share.load
        request = generate_request(
            load.model,
            load.prompt,
            stream=load.stream,
            sampling={"max_tokens": load.max_tokens, "ignore_eos": True, "temperature": 0},
            details=("num_output_tokens",),
        )
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        self._request = request.SerializeToString()
        self._parse = service_pb2.ModelStreamInferResponse.FromString
        self._share = share
        self._past_end = 0
        self._all_past_end = asyncio.Event()
        self.answers: list[Answer] = []

    async def run(self) -> None:
        import grpc

        await asyncio.sleep(self._share.begin - time.monotonic())
        async with grpc.aio.insecure_channel(self._share.load.url) as channel:
            streams = [
                asyncio.ensure_future(self._stream(channel)) for _ in range(self._share.streams)
            ]
            try:
                await asyncio.gather(*streams)
            finally:
                for stream in streams:
                    stream.cancel()

    async def _stream(self, channel: object) -> None:
        call = channel.stream_stream(METHOD)()  # type: ignore[attr-defined]
        counted = False
        while not self._all_past_end.is_set():
            started = time.monotonic()
            await call.write(self._request)
            answer = await self._follow(call, started)
            if answer.tokens != self._share.load.max_tokens:
                raise RuntimeError(f"a request brought {answer.tokens} tokens")
            self.answers.append(answer)
            if not counted and answer.ended >= self._share.end:
                counted = True
                self._past_end += 1
                if self._past_end == self._share.streams:
                    self._all_past_end.set()
        await call.done_writing()
        await call.read()  # the end of the stream

    async def _follow(self, call: object, started: float) -> Answer:
        tokens, first = 0, 0.0
        while True:
            message = self._parse(await call.read())  # type: ignore[attr-defined]
            if message.error_message:
                raise RuntimeError(message.error_message)
            answer = message.infer_response
            if answer.raw_output_contents:
                names = [output.name for output in answer.outputs]
                raw = answer.raw_output_contents[names.index("num_output_tokens")]
                tokens += int.from_bytes(raw, "little")
                if tokens and not first:
                    first = time.monotonic()
            if answer.parameters["triton_final_response"].bool_param:
                return Answer(started, first, time.monotonic(), tokens)


def _main() -> None:
    given = json.loads(sys.stdin.read())
    loop = _Loop(Share(**{**given, "load": Load(**given["load"])}))
    try:
        asyncio.run(loop.run())
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
    else:
        print(json.dumps({"answers": loop.answers}))


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]


if __name__ == "__main__":
    # grpcio's older poller takes much less of a core than the default one.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client")
    _main()
