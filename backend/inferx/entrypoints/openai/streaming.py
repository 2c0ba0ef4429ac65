"""Sends an answer, whole or as events, for as long as its client is there."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from inferx_client import InferenceError

from inferx.entrypoints.openai.answer import Answer, event
from inferx.entrypoints.openai.backlog import Backlog, Overflow
from inferx.entrypoints.openai.door import ClientLeft, Receive, Send, read_body, respond, start
from inferx.entrypoints.openai.errors import ApiError, encoded, of_inference_error
from inferx.entrypoints.openai.generation import Generation
from inferx.entrypoints.openai.limits import LONG_BODY, Limits
from inferx.entrypoints.openai.recent_errors import RecentErrors
from inferx.entrypoints.openai.turns import Turns

T = TypeVar("T")
logger = logging.getLogger(__name__)

_EVENTS = "text/event-stream; charset=utf-8"


class Job(NamedTuple):
    """A request that was understood."""

    generation: Generation
    answer: Answer
    stream: bool


class GenerateRoute:
    """One path, as an ASGI application: a body in, an answer out."""

    def __init__(
        self,
        prepare: Callable[[bytes], Coroutine[Any, Any, Job]],
        limits: Limits,
        turns: Turns,
        errors: RecentErrors,
    ) -> None:
        """`prepare` raises ApiError for what is wrong with a body."""
        self._prepare = prepare
        self._limits = limits
        self._turns = turns
        self._errors = errors

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, self._limits)
            job = await self._prepared(body, receive)
            del body
            if job.stream:
                await self._send_events(job, receive, send)
            else:
                await _send_whole(job, receive, send)
        except (ClientLeft, Overflow):
            return  # an unfinished answer ends with its connection
        except Exception as error:
            problem = self._noted(error)
            await respond(send, problem.status, encoded(problem), problem.headers)

    async def _prepared(self, body: bytes, receive: Receive) -> Job:
        work = self._prepare(body)
        # A long one may wait for its turn, and its client leave meanwhile
        return await (_while_connected(receive, work) if len(body) > LONG_BODY else work)

    async def _send_events(self, job: Job, receive: Receive, send: Send) -> None:
        """Errors before the first event are raised, so that they get a status of their own."""
        backlog = Backlog(self._limits.max_backlog)
        work = asyncio.ensure_future(job.generation.stream(backlog))
        presence = asyncio.ensure_future(_until_gone(receive))
        presence.add_done_callback(lambda _: backlog.fail(ClientLeft()))
        try:
            await backlog.filled()
            parts = backlog.take()
            headers = {"x-request-id": job.answer.id, "cache-control": "no-cache"}
            await start(send, 200, headers, _EVENTS)
            try:
                while parts:
                    await _send_part(send, job.answer.events(parts))
                    await backlog.filled()
                    await self._turns.wait()
                    parts = backlog.take()
                last = job.answer.ending(job.generation.usage)
            except (ClientLeft, Overflow):
                raise
            except Exception as error:
                last = event(self._noted(error).body)
            await send({"type": "http.response.body", "body": last})
        finally:
            await _cancelled(work, presence)

    def _noted(self, error: Exception) -> ApiError:
        problem = as_api_error(error)
        self._errors.note(problem)
        return problem


async def _send_whole(job: Job, receive: Receive, send: Send) -> None:
    completions = await _while_connected(receive, job.generation.whole())
    body = job.answer.whole(completions, job.generation.usage)
    await respond(send, 200, body, {"x-request-id": job.answer.id})


async def _send_part(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Raises ClientLeft, with the work cancelled, when its client is gone first."""
    task = asyncio.ensure_future(work)
    presence = asyncio.ensure_future(_until_gone(receive))
    try:
        await asyncio.wait({task, presence}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft
    finally:
        await _cancelled(task, presence)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def as_api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InferenceError):
        return of_inference_error(error)
    number = uuid.uuid4().hex[:12]
    logger.error("internal error %s", number, exc_info=error)
    return ApiError(500, f"internal error {number}: the server's log has the same number")
