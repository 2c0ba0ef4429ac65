"""Headless Chromium, driven with its DevTools protocol over a pipe: JSON, each ended by a NUL.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds for something that takes one or two
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--mute-audio"),
)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Tab:
    """A tab and all that it has said: `console` errors, and `requests` by their URL."""

    def __init__(self, browser: _Pipe, session: str) -> None:
        self._browser = browser
        self._session = session
        self.console: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        answer = self._browser.call(method, parameters, self._session)
        for event in self._browser.take_events(self._session):
            self._note(event["method"], event["params"])
        return answer

    def show(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens `url`."""
        self.resize(width, height, dark=dark)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression, awaited where it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def wait_for(self, condition: str, seconds: float = PATIENCE) -> None:
        """Polls a JavaScript expression until it is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press_enter(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r",
            )  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """Of the whole page, as PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.console.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.console.append(parameters["entry"]["text"])


@contextlib.contextmanager
def chromium(program: str) -> Iterator[Browser]:
    """A fresh browser, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        pipe = _Pipe([program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"])
        try:
            yield Browser(pipe)
        finally:
            pipe.close()


class Browser:
    def __init__(self, pipe: _Pipe) -> None:
        self._pipe = pipe

    @contextlib.contextmanager
    def tab(self) -> Iterator[Tab]:
        """One that shares nothing with others."""
        context = self._pipe.call("Target.createBrowserContext")
        target = self._pipe.call("Target.createTarget", {"url": "about:blank", **context})
        attached = self._pipe.call("Target.attachToTarget", {**target, "flatten": True})
        yield Tab(self._pipe, attached["sessionId"])
        self._pipe.call("Target.disposeBrowserContext", context)


class _Pipe:
    """The program reads messages from its descriptor 3 and writes them to 4."""

    def __init__(self, command: list[str]) -> None:
        (their_input, self._output), (self._input, their_output) = os.pipe(), os.pipe()
        shell = f'exec "$@" 3<&{their_input} 4>&{their_output}'
        self._program = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(their_input, their_output),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(their_input)
        os.close(their_output)
        self._number = 0
        self._unread = b""
        self._events: list[dict[str, Any]] = []

    def call(
        self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters or {}}
        if session:
            message["sessionId"] = session
        os.write(self._output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._events.append(answer)

    def take_events(self, session: str) -> list[dict[str, Any]]:
        found = [event for event in self._events if event.get("sessionId") == session]
        self._events.clear()
        return found

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.call("Browser.close")
        os.close(self._output)
        os.close(self._input)
        try:
            self._program.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._program.kill()
            self._program.wait()

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            readable, _, _ = select.select([self._input], [], [], PATIENCE)
            part = os.read(self._input, 1 << 16) if readable else b""
            if not part:
                raise OSError("Chromium has ended, or does not answer")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)
