"""The program that renders chat templates: a JSON object a line in, one a line out.

A template is code from outside. Jinja's sandbox keeps it from reaching Python; what the sandbox
does not bound (endless loops, huge powers and strings, deep recursion) is bounded by running in a
process of its own: SIGALRM ends it when a rendering takes too long, and its memory is limited.
It imports nothing of InferX, so that it starts quickly and needs no search path.
"""

import json
import os
import resource
import signal
import sys
from datetime import datetime
from typing import Any

# The neighbours' names are not for import
sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]

from jinja2 import TemplateError, TemplateSyntaxError, nodes  # noqa: E402
from jinja2.ext import Extension, loopcontrols  # noqa: E402
from jinja2.parser import Parser  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402


class RefusedByTemplate(TemplateError):
    """The template called raise_exception."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise RefusedByTemplate(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment() -> ImmutableSandboxedEnvironment:
    """What the model hub's templates are written for: transformers' apply_chat_template."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


class Renderer:
    def __init__(self, templates: dict[str, str], max_chars: int) -> None:
        self._environment = environment()
        self._sources = templates
        self._compiled: dict[str, Any] = {}
        self._max_chars = max_chars

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, str]:
        """{"text": ...}, or {"error": ...}: a clause that goes on from "the chat template"."""
        try:
            return {"text": self._render(name, variables)}
        except RefusedByTemplate as error:
            return {"error": f"refuses the messages: {error.message}"}
        except TemplateSyntaxError as error:
            return {"error": f"has a syntax error in line {error.lineno}: {error.message}"}
        except MemoryError:
            return {"error": "needs too much memory"}
        except Exception as error:  # anything that a template can provoke
            return {"error": f"fails: {type(error).__name__}: {error}"}

    def _render(self, name: str, variables: dict[str, Any]) -> str:
        if name not in self._compiled:
            self._compiled[name] = self._environment.from_string(self._sources[name])
        pieces, size = [], 0
        for piece in self._compiled[name].generate(variables):
            size += len(piece)
            if size > self._max_chars:
                raise TemplateError(f"its text exceeds {self._max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


def main() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    settings = json.loads(sys.stdin.readline())
    for limit, bound in (
        (resource.RLIMIT_AS, settings["max_bytes"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (bound, bound))
    renderer = Renderer(settings["templates"], settings["max_chars"])
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, settings["max_seconds"])
        answer = renderer.answer(**json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
