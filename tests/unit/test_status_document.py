"""The status page's document: nothing from outside, and nothing that could become markup."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from inferx.entrypoints.openai import page
from inferx.entrypoints.openai.page import Page, status_page

FOLDER = Path(page.__file__).with_name("page")


@pytest.fixture(scope="module")
def served() -> Page:
    return status_page(needs_key=False)


def directives(served: Page) -> dict[str, str]:
    policy = served.headers["content-security-policy"]
    return dict(part.split(" ", 1) for part in policy.split("; "))


def test_the_policy_lets_in_this_style_and_this_script_alone(served: Page) -> None:
    html = served.html.decode()

    def hash_of(pattern: str) -> str:
        (text,) = re.findall(pattern, html, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert directives(served) == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "style-src": hash_of(r"<style>(.*?)</style>"),
        "script-src": hash_of(r'<script type="module">(.*?)</script>'),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }


def test_there_is_no_address_of_another_host(served: Page) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", served.html.decode()))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, which nobody fetches


def test_no_text_becomes_markup_and_no_style_stands_in_an_attribute(served: Page) -> None:
    html = served.html.decode()
    for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert name not in html
    assert not re.search(r"\sstyle=|\son\w+=\"", html)
    assert "localStorage" not in html
    assert "sessionStorage" not in html
    assert "cookie" not in html


def test_all_files_of_the_folder_are_in_the_page_and_none_is_long(served: Page) -> None:
    html = served.html.decode()
    assert "{{" not in html
    for path in FOLDER.iterdir():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 200, path.name
        assert path.name == "page.html" or text in html, path.name


def test_every_field_has_a_label(served: Page) -> None:
    html = served.html.decode()
    labels = re.findall(r"<label[^>]*>.*?</label>", html, re.DOTALL)
    fields = re.findall(r"<(?:input|textarea|select)\b", html)
    assert sum(len(re.findall(r"<(?:input|textarea|select)\b", label)) for label in labels) == len(
        fields
    )


@pytest.mark.parametrize(("needs_key", "mark"), [(True, "required"), (False, "none")])
def test_the_page_knows_whether_to_ask_for_a_key(needs_key: bool, mark: str) -> None:
    assert f'data-key="{mark}"'.encode() in status_page(needs_key=needs_key).html


def test_the_wheel_has_the_whole_folder() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the wheel")
    builder = wheel.WheelBuilder(str(FOLDER.parents[4]))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    where = "inferx/entrypoints/openai/page"
    assert {f"{where}/{path.name}" for path in FOLDER.iterdir()} <= packed
