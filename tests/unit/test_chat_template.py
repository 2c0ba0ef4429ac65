# ruff: noqa: E501 - templates are read best in one line
from __future__ import annotations

import subprocess
import threading
from typing import Any

import pytest
from inferx.errors import InvalidArgument
from inferx.text.chat_template import ChatTemplate, TemplateLimits
from inferx.text.messages import MAX_CHARS, MAX_MESSAGES, check_chat

QUICK = TemplateLimits(max_seconds=0.3, max_chars=100_000)
USER = {"role": "user", "content": "Hi"}


def render(template: str, messages: Any = (USER,), **given: Any) -> str:
    made = ChatTemplate({"default": template}, {"bos_token": "<s>"}, QUICK)
    try:
        return made.render(messages, **given)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi"),
        ("{% for m in messages %}\n  {{ m.role }}\n{% endfor %}\nend", "  user\nend"),
        ("{% for m in [1, 2] %}{% if m == 1 %}{% continue %}{% endif %}{{ m }}{% endfor %}", "2"),
        ("{{ {'a<': ['é']} | tojson }}", '{"a<": ["é"]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True True"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)  # fmt: skip
def test_templates_find_what_the_model_hubs_templates_use(template: str, text: str) -> None:
    assert render(template) == text


def test_variables_of_the_client_reach_the_template() -> None:
    template = "{% if enable_thinking %}on{% else %}off{% endif %}"
    assert render(template, enable_thinking=True) == "on"
    assert render(template, enable_thinking=False) == render(template) == "off"


def test_a_variable_may_have_any_name() -> None:
    chat = check_chat([USER], None, {"self": "me", "name": "N", "class": "C"})
    template = ChatTemplate({"default": "{{ self }} {{ name }}"}, {}, QUICK)
    assert template.render_chat(chat).endswith(" N")
    template.close()


def test_fields_that_are_null_are_missing() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    template = "{% for m in messages %}{{ 'content' in m }} {% endfor %}"
    assert render(template, [USER, call]) == "True False "


def test_tools_choose_the_template_for_tools() -> None:
    made = ChatTemplate({"default": "plain", "tool_use": "tools"}, {}, QUICK)
    assert made.render([USER]) == "plain"
    assert made.render([USER], tools=[{"type": "function"}]) == "tools"
    with pytest.raises(InvalidArgument, match="none of them is the default"):
        ChatTemplate({"rag": "x"}, {}).render([USER])


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ raise_exception('No system role, please') }}",
         "the model's chat template refuses the messages: No system role, please"),
        ("a\n{% if %}", "the model's chat template has a syntax error in line 2"),
        ("{{ messages[0].nothing.at_all }}", "has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)  # fmt: skip
def test_a_templates_own_error_is_the_requests(template: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        render(template)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ lipsum.__globals__['os'].system('true') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(InvalidArgument, match="the model's chat template fails"):
        render(template)


@pytest.mark.parametrize(
    "template", ["{{ ''|attr('__class__') }}", "{{ '{0.__class__}'.format('') }}"]
)
def test_attributes_that_lead_to_python_are_undefined(template: str) -> None:
    assert render(template) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 'a'.center(10 ** 10) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ lipsum(n=10 ** 7) }}",
        "{% for a in range(99999) %}{{ messages }}{% endfor %}",
    ],
)  # fmt: skip
def test_a_template_that_needs_too_much_ends_and_says_so(template: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        render(template)
    assert any(
        reason in str(raised.value)
        for reason in ("takes longer than 0.3 seconds", "memory", "recursion", "exceeds 100000")
    )


def test_the_memory_of_a_rendering_is_bounded() -> None:
    template = "{{ ('a' * 200_000_000) | length }}"
    narrow, wide = (TemplateLimits(max_bytes=size << 20) for size in (128, 512))
    with pytest.raises(InvalidArgument, match="memory"):
        ChatTemplate({"default": template}, {}, narrow).render([USER])
    assert ChatTemplate({"default": template}, {}, wide).render([USER]) == "200000000"


def test_rendering_goes_on_after_a_template_was_ended() -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = f"{{% if messages[0].content == 'loop' %}}{loop}{{% endif %}}ok"
    made = ChatTemplate({"default": template}, {}, QUICK)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="takes longer than"):
            made.render([{"role": "user", "content": "loop"}])
        assert made.render([USER]) == "ok"


def test_a_rendering_process_that_was_killed_is_replaced() -> None:
    made = ChatTemplate({"default": "ok"}, {}, QUICK)
    assert made.render([USER]) == "ok"
    assert made._worker is not None
    made._worker.kill()
    made._worker.wait()
    assert made.render([USER]) == "ok"


def test_the_time_of_a_rendering_does_not_go_on_after_it() -> None:
    """Else the process would be gone when the next one comes, or go in the middle of it."""
    made = ChatTemplate({"default": "ok"}, {}, QUICK)
    made.render([USER])
    assert made._worker is not None
    with pytest.raises(subprocess.TimeoutExpired):
        made._worker.wait(2 * QUICK.max_seconds)


def test_threads_share_a_template() -> None:
    made = ChatTemplate({"default": "{{ messages[0].content }}"}, {}, QUICK)
    texts: list[str] = []

    def work(index: int) -> None:
        for _ in range(20):
            texts.append(made.render([{"role": "user", "content": f"<{index}>"}]) + f"={index}")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == sorted(f"<{index}>={index}" for index in range(5) for _ in range(20))


def test_the_rendering_process_ends_with_its_template() -> None:
    made = ChatTemplate({"default": "ok"}, {}, QUICK)
    made.render([USER])
    worker = made._worker
    assert worker is not None
    del made
    assert worker.poll() is not None


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "messages is not a list of at least one"),
        ("Hi", "messages is not a list of at least one"),
        (["Hi"], "messages[0] is not an object"),
        ([{"content": "Hi"}], "messages[0] has the role None: expected one of system,"),
        ([USER, {"role": "end", "content": ""}], "messages[1] has the role 'end'"),
        ([{"role": ["user"], "content": ""}], "messages[0] has the role"),
        ([{"role": "user"}], "messages[0] has no content"),
        ([{"role": "user", "content": 5}], "messages[0].content is neither a string nor a list"),
        ([{"role": "user", "content": [{"x": object()}]}], "messages[0] holds a value of type object"),
        ([{"role": "user", "content": [{5: "x"}]}], "messages[0] holds a value of type dict"),
        ([{"role": "user", "content": "x" * (MAX_CHARS + 1)}], "exceeds the 4194304 characters"),
        ([USER] * (MAX_MESSAGES + 1), "there are 4097 messages: at most 4096"),
    ],
)  # fmt: skip
def test_malformed_messages_are_refused_by_name(messages: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        render("x", messages)
    assert problem in str(raised.value)


def test_deeply_nested_messages_are_refused() -> None:
    nested: Any = "x"
    for _ in range(100):
        nested = [nested]
    with pytest.raises(InvalidArgument, match="nested too deeply"):
        render("x", [{"role": "user", "content": nested}])


def test_a_chat_of_a_million_values_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="the template variables is nested too deeply or has"):
        render("x", documents=[None] * (1 << 20))


def test_tools_and_variables_are_checked() -> None:
    with pytest.raises(InvalidArgument, match="tools is not a list of objects"):
        render("x", tools=["f"])
    with pytest.raises(InvalidArgument, match="the template variables holds a value"):
        render("x", documents=[object()])
