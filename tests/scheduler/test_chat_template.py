"""Rendering of conversations: the field's conventions, and templates that fail, run away or try to break out."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from common.errors import InvalidRequest, StartupError
from scheduler_svc.chat_template import ChatTemplate
from scheduler_svc.model_files import ChatTemplateSource
from tests.scheduler.text_folders import CHATML

USER = {"role": "user", "content": "hi"}
FILE = Path("model/chat_template.jinja")


def template(text: str, *, max_seconds: float = 2.0, max_characters: int = 10_000) -> ChatTemplate:
    return ChatTemplate(
        ChatTemplateSource(text, FILE), {"bos_token": "<s>"}, max_seconds=max_seconds, max_characters=max_characters
    )


def render(text: str, *contents: str) -> str:
    return template(text).render([{"role": "user", "content": content} for content in contents or ("hi",)])


def refusal(text: str, *roles: str, max_seconds: float = 2.0, max_characters: int = 10_000) -> str:
    messages = [{"role": role, "content": "SECRET"} for role in roles or ("user",)]
    with pytest.raises(InvalidRequest) as caught:
        template(text, max_seconds=max_seconds, max_characters=max_characters).render(messages)
    assert "SECRET" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHATML, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
        ("{% if true %}\n  {% for m in messages %}\n{{ m['content'] }}\n  {% endfor %}\n{% endif %}", "hi\n"),
        ("{{ bos_token }}{{ eos_token }}{{ tools }}{{ documents }}{{ add_generation_prompt }}", "<s>NoneNoneTrue"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1, 2] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}", "1/2False2/2True"),
        ("{% for i in [1, 2] if i > 1 %}{{ loop.first }}{{ i }}{% else %}none{% endfor %}", "True2"),
        ("{% for i in absent %}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ '!' }}{% endfor %}", "a1!"),
        (
            "{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n * 2 + 1 %}{% endfor %}{{ ns.n }}",
            "15",
        ),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') + '-' * 2 }}", "abab--"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ messages[-1].content.strip().upper() }}{{ 2 ** 3 }}{{ [1] + [2] }}", "HI8[1, 2]"),
        ("{% for m in messages recursive %}{{ m.content }}{% endfor %}", "hi"),
    ],
)
def test_conventions(text: str, expected: str) -> None:
    assert render(text) == expected


def test_strftime_now() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    assert before <= render("{{ strftime_now('%Y-%m-%d') }}") <= datetime.now().strftime("%Y-%m-%d")


def test_template_cannot_change_the_messages_of_the_caller() -> None:
    messages = [dict(USER)]
    with pytest.raises(InvalidRequest, match=r"fails on this conversation: access to attribute .append. of"):
        template("{{ messages.append(1) }}").render(messages)
    assert messages == [USER]


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must\nalternate, got ' + m.role) }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("roles", [("user", "user"), ("tool", "user"), ("user", "assistant", "ipython", "x")])
def test_F48_template_refuses_with_its_own_words(roles: tuple[str, ...]) -> None:
    assert refusal(ALTERNATING, *roles).startswith(
        "chat: the model's template refuses this conversation: Roles must alternate, got "
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ absent | tojson }}", "fails on this conversation with TypeError"),
        ("{{ absent.field }}", "fails on this conversation: 'absent' is undefined"),
        ("{{ messages[0].name.x }}", "fails on this conversation: 'dict object' has no attribute 'name'"),
        ("{{ messages[0].content + 1 }}", "fails on this conversation with TypeError"),
        ("{{ 1 // 0 }}", "fails on this conversation with ZeroDivisionError"),
        ("{{ messages[0].content | int('x') | abs }}", "fails on this conversation with TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on this conversation with RecursionError"),
        ("{% include 'x' %}", "fails on this conversation"),
        ("", "makes an empty prompt of this conversation"),
        ("{% if false %}x{% endif %}", "makes an empty prompt of this conversation"),
    ],
)
def test_F48_template_that_fails_is_told_to_the_caller(text: str, reason: str) -> None:
    assert reason in refusal(text)


@pytest.mark.parametrize("text", ["{% for m in messages %}", "{{ 1 + }}", "line\n{% unknown %}", "{{ 1 | nofilter }}"])
def test_F48_broken_syntax_is_found_at_start(text: str) -> None:
    with pytest.raises(StartupError, match=r"^model/chat_template.jinja: line [12] of the chat template: "):
        template(text)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ ('{0.__class__.__mro__}').format(messages) }}",
        "{{ ''|attr('__class__') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
    ],
)
def test_F56_sandbox_stops_a_template_that_reaches_into_python(attack: str) -> None:
    try:
        rendered = render("start" + attack)
    except InvalidRequest:
        return
    assert rendered == "start"


@pytest.mark.parametrize("text", ["{{7*7}}", "{% raw %}", "{{ ''.__class__ }}", "{#", "\x00{{ bos_token }}"])
def test_F56_text_of_a_message_is_never_evaluated(text: str) -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}", text) == "<s>" + text


NESTED = "{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "text",
    [
        "{% set r = range(90000) %}" + NESTED,
        "{% set r = messages %}{% for i in range(7) %}{% set r = r + r %}{% endfor %}{% set r = range(9999) %}"
        + NESTED,
        NESTED.replace(" r ", " range(90000) "),
        "{% macro f(n) %}{% if n %}{% set _ = f(n - 1) %}{% set _ = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for i in range(90000) recursive %}{{ loop(range(90000)) if loop.depth < 3 else '' }}{% endfor %}",
    ],
)
def test_F56_template_that_runs_away_is_ended(text: str) -> None:
    started = time.thread_time()
    assert "takes longer than 0.2 s" in refusal(text, max_seconds=0.2)
    assert time.thread_time() - started < 2.0


DOUBLING = (
    "{{% set ns = namespace(s='xx') %}}{{% for i in range(60) %}}{{% set ns.s = {} %}}{{% endfor %}}{{{{ ns.s }}}}"
)


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(90000) %}text{% endfor %}",
        "{{ 'x' * 100000000000 }}",
        "{{ 100000000000 * [1, 2] }}",
        "{{ (2 ** 1000000000000) % 7 }}",
        "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n % 7 }}",
        DOUBLING.format("ns.s + ns.s"),
        DOUBLING.format("ns.s ~ ns.s"),
        "{% macro d(n) %}{% if n %}{{ d(n - 1) }}{{ d(n - 1) }}{% else %}xx{% endif %}{% endmacro %}{{ d(40) }}",
        "{% set a %}" + "{{ messages[0].content }}" * 2000 + "{% endset %}",
        "{{ '%300000000d' % 1 }}",
        "{{ '%*d' % (300000000, 1) }}",
        "{{ '%300000000d' | format(1) }}",
        "{{ '{:>300000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 300000000) }}",
        "{{ '{0:>300000000}'.format_map({'0': 1}) }}",
        "{{ 'x'.center(300000000) }}",
        "{{ 'x'.zfill(300000000) }}",
        "{{ 'x' | center(300000000) }}",
        "{{ 'x' | indent(300000000, true) }}",
        "{{ 'a\tb'.expandtabs(300000000) }}",
        "{{ ['x'] | batch(300000000, 'y') | list }}",
        "{{ 'x' | slice(300000000) | list }}",
        "{{ {'a': 1} | tojson(indent=300000000) }}",
        "{{ ('x' * 9000).replace('x', 'yy') }}",
        "{{ ('x' * 200) | replace('x', 'y' * 200) }}",
        "{{ (['x' * 200] * 200) | join }}",
        "{{ ''.join(['x' * 200] * 200) }}",
        "{{ ('x' * 200).join(['x'] * 200) }}",
        "{{ range(200) | map('center', 200) | join }}",
        "{{ ['x' * 200] * 200 }}",
        "{{ '' ~ (['x' * 200] * 200) }}",
        "{{ '%s' % [['x' * 200] * 200] }}",
        "{{ (['x' * 200] * 200) | string }}",
        "{{ (['x' * 200] * 200) | tojson }}",
        "{{ {'a': 'x' * 9000, 'b': 'x' * 9000} }}",
        "{% set l = namespace(a='x' * 9000, b='x' * 9000) %}{{ l }}",
        "{% set l = namespace(x=[]) %}{% for i in range(900) %}{% set l.x = l.x + ['y'.center(900)] %}{% endfor %}",
        "{% set x = 'y' * 900 %}{% set l = namespace(x=[]) %}"
        "{% for i in range(900) %}{% set l.x = l.x + [x[1:]] %}{% endfor %}",
    ],
)
def test_F56_template_that_writes_too_much_is_ended(text: str) -> None:
    started = time.thread_time()
    assert "writes more than 10000 characters" in refusal(text, max_seconds=60.0)
    assert time.thread_time() - started < 5.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ '%5d|%s' % (7, 'x') }}", "    7|x"),
        ("{{ '%.2f' | format(1.005) }}", "1.00"),
        ("{{ '{:>4}{}'.format(7, 'x') }}", "   7x"),
        ("{{ 7 % 4 }}", "3"),
        ("{{ 'a-b'.replace('-', '+') | replace('a', 'c') }}", "c+b"),
        ("{{ 'a\nb' | indent(2) }}{{ 'x' | center(3) }}{{ 'x'.ljust(2) }}|", "a\n  b x x |"),
        ("{{ ['a', 1] | join('-') }}{{ '-'.join('abc') }}{{ messages | join('', attribute='role') }}", "a-1a-b-cuser"),
        ("{{ messages | map(attribute='content') | map('upper') | join }}{{ 'abc'[1:] }}", "HIbc"),
        ("{{ 'a</think>b'.split('</think>')[-1].lstrip('\n') }}", "b"),
        ("{{ [1, [2], {'a': namespace(x=1)}] }}", "[1, [2], {'a': <Namespace {'x': 1}>}]"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ [3, 1] | sort | sum }}", "14"),
    ],
)
def test_F56_metered_operations_mean_what_they_did(text: str, expected: str) -> None:
    assert render(text) == expected


def test_F56_longest_conversation_is_rendered_within_the_limits() -> None:
    """16 MiB in 4096 messages, through the operations of a usual template."""
    text = (
        "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}"
        "{% endif %}{{ '<|' + m.role + '|>' + c | trim }}{{ messages[loop.index0:] | length }}{% endfor %}"
    )
    whole = ChatTemplate(ChatTemplateSource(text, FILE), {})
    content = "<think>" + "x" * 2040 + "</think>" + "y" * 2040
    rendered = whole.render([{"role": "user", "content": content}] * 4096)
    assert rendered.startswith("<|user|>" + "y" * 2040 + "4096<|user|>")


def test_limits_hold_for_each_rendering_anew() -> None:
    tight = template("{{ messages[0].content }}", max_characters=10)
    for _ in range(3):
        assert tight.render([{"role": "user", "content": "x" * 10}]) == "x" * 10
