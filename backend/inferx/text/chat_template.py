"""A model's chat templates: messages to the text of a prompt.

The rendering itself happens in a process of its own (`template_worker`), which starts with the
first one and ends with its ChatTemplate or with the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from inferx.errors import InvalidArgument
from inferx.text.messages import Chat, check_chat

_WORKER = Path(__file__).with_name("template_worker.py")
_MAX_ERROR = 500  # characters of a template's own message


class TemplateLimits(NamedTuple):
    """What one rendering may use."""

    max_seconds: float = 5.0
    max_chars: int = 8 << 20
    max_bytes: int = 512 << 20  # of the rendering process's address space


class ChatTemplate:
    """Renders; may be called from several threads, one after the other."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        limits: TemplateLimits = TemplateLimits(),  # noqa: B008 - immutable
    ) -> None:
        """`templates` are Jinja sources by name, `special_tokens` bos_token, eos_token, ..."""
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._limits = limits
        self._lock = threading.Lock()
        self._worker: subprocess.Popen[bytes] | None = None
        self._end_worker: Callable[[], object] = lambda: None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt's text, control tokens included. `variables` are what a template may ask for
        besides, such as `enable_thinking`.

        Raises InvalidArgument for messages that are malformed or that the template refuses, and
        for a template that is wrong or exceeds its limits.
        """
        chat = check_chat(messages, tools, variables)
        return self.render_chat(chat, add_generation_prompt=add_generation_prompt)

    def render_chat(self, chat: Chat, *, add_generation_prompt: bool = True) -> str:
        """`render` for a chat that was checked."""
        variables = {
            "documents": None,
            **self._special_tokens,
            **chat.variables,
            "messages": chat.messages,
            "tools": chat.tools,
            "add_generation_prompt": add_generation_prompt,
        }
        request = json.dumps({"name": self._choose(chat.tools), "variables": variables})
        with self._lock:
            answer = self._exchange(request.encode())
        if "error" in answer:
            raise InvalidArgument(f"the model's chat template {answer['error'][:_MAX_ERROR]}")
        return answer["text"]

    def close(self) -> None:
        """Ends the rendering process; the next rendering starts another one."""
        with self._lock:
            self._discard()

    def _choose(self, tools: Any) -> str:
        for name in ("default",) if tools is None else ("tool_use", "default"):
            if name in self._templates:
                return name
        raise InvalidArgument(
            f"the model has the chat templates {', '.join(sorted(self._templates))}, "
            "and none of them is the default"
        )

    def _exchange(self, request: bytes) -> dict[str, str]:
        """One line there and one back. A worker that was gone before is replaced."""
        if self._worker is not None and self._worker.poll() is not None:
            self._discard()
        if self._worker is None:
            self._worker = self._start()
        worker = self._worker
        assert worker.stdin is not None
        assert worker.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it died of this request: read why
            worker.stdin.write(request + b"\n")
            worker.stdin.flush()
        line = worker.stdout.readline()
        if line.endswith(b"\n"):
            return json.loads(line)
        code = worker.wait()
        self._discard()
        if code == -signal.SIGALRM:
            return {"error": f"takes longer than {self._limits.max_seconds:g} seconds"}
        return {"error": "needs more memory than it may have, or cannot be run"}

    def _start(self) -> subprocess.Popen[bytes]:
        worker = subprocess.Popen(
            [sys.executable, str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback could show a message
            start_new_session=True,  # a Ctrl-C in the terminal is for the parent
        )
        self._end_worker = weakref.finalize(self, _stop, worker)
        settings = {"templates": self._templates, **self._limits._asdict()}
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps(settings).encode() + b"\n")
            worker.stdin.flush()
        return worker

    def _discard(self) -> None:
        if self._worker is not None:
            self._end_worker()
            self._worker = None


def _stop(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.kill()
    worker.wait()
    for pipe in (worker.stdin, worker.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
