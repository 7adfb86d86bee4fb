"""Chat templates, each in a model folder of its own: what they refuse, what they break, and what they must not do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from citybus import InvalidRequest
from citybus.v1 import generation_pb2 as pb
from tests.checkpoints import write_chain
from tests.e2e.field_cases.conftest import SCRIPT
from tests.e2e.field_cases.field import Field, is_serving, running_executor, scheduler_field
from tests.e2e.field_cases.starting import start_refused
from tests.e2e.field_cases.wire import field as wire_field
from tests.e2e.field_cases.wire import send, status
from tests.harness import Service

LAST = "{{ messages[-1].content }}"
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user and assistant') }}{% endif %}{{ m.content }}{% endfor %}"
)
KNOWN_ROLES = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('Unknown role ' + m.role) }}{% endif %}{% endfor %}" + LAST
)

WithTemplate = Callable[[str], Field]
"""Makes a field whose model has this chat template."""


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("executor")
    model = write_chain(folder / "chain", SCRIPT, max_model_len=64)
    with running_executor(model, folder / "log", "--num-blocks", 64) as service:
        yield service


@pytest.fixture
def with_template(executor: Service, tmp_path: Path) -> Iterator[WithTemplate]:
    with ExitStack() as stack:

        def make(template: str) -> Field:
            model = write_chain(tmp_path / "chain", SCRIPT, chat_template=template)
            field = stack.enter_context(scheduler_field(model, tmp_path / "bus", executor))
            stack.callback(field.check)
            return field

        yield make


def refused(field: Field, *messages: dict[str, str]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        field.client.complete(messages=messages, temperature=0)  # type: ignore[arg-type]
    return str(caught.value)


def test_F48_template_that_refuses_the_order_is_the_callers_fault(with_template: WithTemplate) -> None:
    field = with_template(ALTERNATING)
    for messages in (
        [user("a"), user("b")],
        [{"role": "tool", "content": "x"}],
        [{"role": "assistant", "content": "x"}],
    ):
        assert "Roles must alternate user and assistant" in refused(field, *messages)
    answer = field.client.complete(messages=[user("@")], temperature=0)  # type: ignore[list-item]
    assert answer.text == "ABCDEFG"


def test_F48_unknown_role_is_the_templates_to_refuse(with_template: WithTemplate) -> None:
    field = with_template(KNOWN_ROLES)
    assert "Unknown role narrator" in refused(field, {"role": "narrator", "content": "x"})
    assert "role must be 1 to 64 letters" in refused(field, {"role": "no such\nrole", "content": "x"})


def test_F48_undefined_variable_is_told(with_template: WithTemplate) -> None:
    assert "the model's template fails" in refused(with_template("{{ nobody | tojson }}"), user("x"))


def test_F48_template_that_writes_nothing(with_template: WithTemplate) -> None:
    field = with_template("{# nothing #}")
    assert "empty prompt" in refused(field, user("x"))
    assert field.client.complete("@", temperature=0).text == "ABCDEFG"


def test_F48_content_that_is_no_text_does_not_leave_the_client(chain_field: Field) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
    with pytest.raises(TypeError, match=r"^messages: "):
        chain_field.client.complete(messages=parts)
    nothing: Any = {"role": "user", "content": None}
    assert "the prompt is empty" in refused(chain_field, nothing)


def test_F48_missing_template_leaves_plain_text(bare_field: Field) -> None:
    assert "the model has no chat template" in refused(bare_field, user("@"))
    assert bare_field.client.complete("@", temperature=0).text == "ABCDEFG"
    assert not bare_field.client.models()[0].has_chat_template


def test_F48_broken_syntax_is_found_at_start(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "chain", SCRIPT, chat_template="{% for m in messages %}\n{{ m.content }")
    line = start_refused("scheduler_svc", model, "--admin-listen", "127.0.0.1:0")
    assert "tokenizer_config.json: line 2 of the chat template" in line


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}",
        "{{ messages.append('x') }}" + LAST,
    ],
)
def test_F56_template_cannot_reach_into_python(with_template: WithTemplate, tmp_path: Path, attack: str) -> None:
    marker = tmp_path / "marker"
    assert "the model's template fails" in refused(with_template(attack.replace("MARKER", str(marker))), user("x"))
    assert not marker.exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 10**12 }}",
        "{% set all = namespace(x='x') %}{% for i in range(99) %}{% set all.x = all.x ~ all.x %}{% endfor %}",
    ],
    ids=["multiplied", "doubled"],
)
def test_F56_template_that_writes_without_end_is_ended(with_template: WithTemplate, template: str) -> None:
    assert "writes more than" in refused(with_template(template), user("x"))


def test_F56_template_that_runs_away_is_ended_and_others_are_served_meanwhile(with_template: WithTemplate) -> None:
    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3
    field, answers = with_template(loops), list[str]()
    caller = threading.Thread(target=lambda: answers.append(refused(field, user("x"))))
    caller.start()
    served = 0
    while caller.is_alive():
        assert is_serving(field.bus.address)
        assert field.client.complete("@", temperature=0).text == "ABCDEFG"
        served += 1
    caller.join()
    assert "takes longer than 2 s" in answers[0]
    assert served >= 3


@pytest.mark.parametrize("text", ["{{7*7}}@", "{% raw %}@", "{{ raise_exception('x') }}@", "{{ messages }}@"])
def test_F56_text_of_a_message_is_never_evaluated(with_template: WithTemplate, text: str) -> None:
    answer = with_template(LAST).client.complete(messages=[user(text)], temperature=0)  # type: ignore[list-item]
    assert answer.text == "ABCDEFG"
    assert answer.finish.usage.prompt_tokens == len(text)


def test_F56_request_cannot_bring_a_template(with_template: WithTemplate) -> None:
    """There is no such field; a field that a message does not have is refused, wherever it is."""
    field = with_template(LAST)
    for name in ("chat_template", "chat_template_kwargs", "bos_token", "tools"):
        options: Any = {"messages": [user("@")], name: "{{ 7 * 7 }}"}
        with pytest.raises(TypeError, match=f"^{name}: no such option"):
            field.client.generate(**options)
    message, template = pb.ChatMessage(role="user", content="@").SerializeToString(), b"{{ 7 * 7 }}"
    whole = wire_field(4, wire_field(1, message))
    for name, request in {
        "GenerateRequest has no field 1000": whole + wire_field(1000, template),
        "ChatPrompt has no field 2": wire_field(4, wire_field(1, message) + wire_field(2, template)),
        "ChatMessage has no field 15": wire_field(4, wire_field(1, message + wire_field(15, template))),
    }.items():
        with status(grpc.StatusCode.INVALID_ARGUMENT, f"citybus.v1.{name} at this server"):
            send(field.bus.address, request)
    assert "".join(response.text for response in send(field.bus.address, whole)) == "ABCDEFG"


@pytest.mark.parametrize("attack", ["{{ '%300000000000d' % 1 }}", "{{ ('x' * 10**7).replace('x', 'y' * 10**7) }}"])
def test_F56_single_call_that_makes_gigabytes_is_not_made(with_template: WithTemplate, attack: str) -> None:
    assert "writes more than" in refused(with_template(attack), user("x"))
