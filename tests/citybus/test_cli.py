"""The commands that talk to a running server, as processes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.citybus.conftest import Served
from tests.citybus.scripted_server import ANSWER, FRANCE, REFUSED, ScriptedServer, serving

CITYBUS = [sys.executable, "-m", "citybus"]
WHOLE = "The capital of France is Paris.\n"


def run(*arguments: str, stdin: str = "", expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*CITYBUS, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expect, done.stderr
    return done


def on_terminal(
    arguments: Sequence[str], until: bytes, sent: bytes = b""
) -> tuple[bytes, subprocess.Popen[bytes], int]:
    """Run on a pseudo-terminal until its output holds `until`; gives the output, the process and the terminal."""
    terminal, inner = pty.openpty()
    process = subprocess.Popen([*CITYBUS, *arguments], stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    os.write(terminal, sent)
    output = b""
    while until not in output and select.select([terminal], [], [], 60)[0]:
        try:
            output += os.read(terminal, 65536)
        except OSError:  # the process has ended
            break
    return output, process, terminal


def test_generate_uses_the_chat_template_where_there_is_one(served: Served) -> None:
    assert run("generate", FRANCE, "--address", served.address).stdout == WHOLE
    (request,) = served.server.requests
    assert [(turn.role, turn.content) for turn in request.chat.messages] == [("user", FRANCE)]


def test_generate_raw_sends_plain_text(served: Served) -> None:
    assert run("generate", "--raw", FRANCE, "--address", served.address).stdout == WHOLE
    assert served.server.requests[0].text == FRANCE


def test_generate_sends_plain_text_where_there_is_no_template() -> None:
    server = ScriptedServer(chat=False)
    with serving(server) as address:
        run("generate", FRANCE, "--address", address)
        failed = run("generate", FRANCE, "--system", "x", "--address", address, expect=1)
    assert server.requests[0].text == FRANCE
    assert failed.stderr == "citybus: --system needs a model with a chat template, and no --raw\n"


def test_generate_reads_standard_input_without_its_last_line_break(served: Served) -> None:
    run("generate", "-", "--system", "Be brief.", "--address", served.address, stdin="a\nb\n")
    turns = served.server.requests[0].chat.messages
    assert [(turn.role, turn.content) for turn in turns] == [("system", "Be brief."), ("user", "a\nb")]


def test_generate_passes_every_option(served: Served) -> None:
    flags = "--max-tokens 9 --temperature 0 --top-p 0.5 --top-k 4 --min-p 0.25 --seed 7 --stop-token-id 3 --ignore-eos"
    more = (
        "--keep-special-tokens --priority -5 --tenant t --time-limit-ms 900 --cache-salt s --request-id r --model tiny"
    )
    run("generate", "x", "--stop", "A", "--stop", "B", *flags.split(), *more.split(), "--address", served.address)
    (request,) = served.server.requests
    sampling, stopping = request.sampling, request.stopping
    assert sampling.HasField("temperature")
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0, 0.5, 4, 0.25, 7)
    assert (stopping.max_tokens, list(stopping.stop), list(stopping.stop_token_ids)) == (9, ["A", "B"], [3])
    assert stopping.ignore_eos
    assert (request.priority, request.tenant, request.time_limit_ms, request.cache_salt) == (-5, "t", 900, "s")
    assert (request.request_id, request.model, request.skip_special_tokens) == ("r", "tiny", False)


def test_generate_asks_for_one_form(served: Served, tmp_path: Path) -> None:
    schema, address = tmp_path / "schema.json", ("--address", served.address)
    schema.write_text('{"type": "object"}', encoding="utf-8")
    run("generate", "x", "--json-schema", str(schema), *address)
    run("generate", "x", "--choice", "yes", "--choice", "no", *address)
    run("generate", "x", "--json-object", *address)
    asked = [request.structured_output for request in served.server.requests]
    assert [form.WhichOneof("form") for form in asked] == ["json_schema", "choice", "json_object"]
    assert (asked[0].json_schema, list(asked[1].choice.texts)) == ('{"type": "object"}', ["yes", "no"])
    assert "not allowed with argument" in run("generate", "x", "--regex", "a", "--choice", "b", expect=2).stderr
    missing = run("generate", "x", "--grammar", str(tmp_path / "none"), expect=2).stderr
    assert f"cannot read {tmp_path / 'none'}" in missing


def test_generate_gives_several_answers_one_after_the_other(served: Served) -> None:
    asked = run("generate", FRANCE, "--n", "2", "--stats", "--address", served.address)
    assert asked.stdout == "".join(f"[{sample}] {''.join(ANSWER)}\n" for sample in range(2))
    stats = "7 prompt tokens (4 cached), 6 generated, first after 0.00 s, 769.2 tokens/s, ended by stop"
    assert asked.stderr == f"[0] {stats}\n[1] {stats}\n"
    lines = run("generate", FRANCE, "--n", "2", "--json", "--address", served.address).stdout.splitlines()
    assert [json.loads(line)["sample"] for line in lines[:-1]] == [0, 0, 0, 1, 1, 1]
    assert len(json.loads(lines[-1])["finishes"]) == 2


def test_generate_says_that_greedy_answers_are_the_same(served: Served) -> None:
    asked = ("generate", FRANCE, "--address", served.address, "--temperature", "0")
    hint = "[all answers are the same at --temperature 0: give a higher one, or --beam-width, for others]\n"
    assert run(*asked, "--n", "2").stderr == hint
    assert run(*asked).stderr == ""
    assert run(*asked, "--n", "2", "--beam-width", "2").stderr == ""


def test_generate_says_once_what_cut_each_answer_off(served: Served) -> None:
    asked = ("generate", "long", "--address", served.address)
    assert run(*asked).stderr == "[ended by length]\n"
    assert run(*asked, "--n", "2").stderr == "[0] [ended by length]\n[1] [ended by length]\n"
    assert run(*asked, "--stats").stderr.count("ended by length") == 1
    assert run(*asked, "--json").stderr == ""


def test_generate_passes_what_changes_logits_and_what_is_told(served: Served) -> None:
    flags = (
        "--repetition-penalty 1.5 --presence-penalty 0.5 --frequency-penalty -0.5 --logit-bias 5=-100 --logit-bias 6=2"
    )
    lists = "--allow-token-id 5 --allow-token-id 6 --ban-token-id 7 --bad-word no --min-tokens 2 --include-stop"
    told = "--json --logprobs 3 --prompt-logprobs 0 --echo"
    run("generate", "x", *flags.split(), *lists.split(), *told.split(), "--address", served.address)
    (request,) = served.server.requests
    sampling, stopping, output = request.sampling, request.stopping, request.output
    assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.5, 0.5, -0.5)
    assert dict(sampling.logit_bias) == {5: -100.0, 6: 2.0}
    assert (list(sampling.allowed_token_ids), list(sampling.banned_token_ids)) == ([5, 6], [7])
    assert (list(sampling.bad_words), stopping.min_tokens, stopping.include_stop) == (["no"], 2, True)
    assert (output.logprobs, output.HasField("prompt_logprobs"), output.prompt_logprobs, output.echo) == (
        3,
        True,
        0,
        True,
    )
    for untold in ("--logprobs", "--prompt-logprobs"):
        refused = run("generate", "x", untold, "2", "--address", served.address, expect=1)
        assert refused.stderr == (
            "citybus: --logprobs and --prompt-logprobs are told with --json only: add it, or leave them out\n"
        )
    wrong = run("generate", "x", "--logit-bias", "five", "--address", served.address, expect=2)
    assert "expected ID=B, such as 1234=-5" in wrong.stderr


def test_generate_json_gives_a_line_a_message(served: Served) -> None:
    lines = [
        json.loads(line) for line in run("generate", FRANCE, "--json", "--address", served.address).stdout.splitlines()
    ]
    assert lines[:-1] == [
        {"first_index": 2 * i, "token_ids": [2 * i, 2 * i + 1], "text": text, "sample": 0}
        for i, text in enumerate(ANSWER)
    ]
    assert lines[-1]["request_id"] == served.server.requests[0].request_id
    assert lines[-1]["finish"]["reason"] == "stop"
    assert lines[-1]["finish"]["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "cached_tokens": 4}


def test_generate_stats_go_to_standard_error(served: Served) -> None:
    done = run("generate", FRANCE, "--stats", "--address", served.address)
    assert done.stdout == WHOLE
    assert done.stderr == (
        "7 prompt tokens (4 cached), 6 generated, first after 0.00 s, 769.2 tokens/s, ended by stop\n"
    )


def test_errors_are_one_line_that_says_what_to_do(served: Served) -> None:
    refused = run("generate", "refuse", "--address", served.address, expect=1)
    assert refused.stderr == f"citybus: the server at {served.address} says INVALID_ARGUMENT: {REFUSED}\n"
    unreached = run("generate", "x", "--address", "127.0.0.1:1", expect=1)
    assert unreached.stderr == (
        "citybus: no server answers at 127.0.0.1:1 (Connection refused); start a server with 'citybus serve', or name "
        "another with --address\n"
    )
    assert run("generate", "x", "--max-tokens", "-1", "--address", served.address, expect=1).stderr.startswith(
        "citybus: max_tokens: "
    )
    assert "--frobnicate" in run("generate", "x", "--frobnicate", expect=2).stderr


def test_text_that_is_not_utf8_is_refused(served: Served) -> None:
    command = [*CITYBUS, "generate", "-", "--address", served.address]
    done = subprocess.run(command, input=b"\xff\xfe", capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"citybus: standard input is not UTF-8: ")


def test_interrupt_cancels_the_request(served: Served) -> None:
    command = [*CITYBUS, "generate", "forever", "--address", served.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(len(ANSWER[0])) == ANSWER[0]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert served.server.cancelled.acquire(timeout=30)


def test_reader_that_has_seen_enough_ends_it_quietly(served: Served) -> None:
    command = [*CITYBUS, "generate", "many", "--json", "--address", served.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_terminal_is_not_handed_control_characters(served: Served) -> None:
    output, process, _ = on_terminal(["generate", "noisy", "--address", served.address], until=b"red")
    assert process.wait(timeout=60) == 0
    assert "\N{REPLACEMENT CHARACTER}[2Jred".encode() in output
    assert run("generate", "noisy", "--address", served.address).stdout == "\x1b[2Jred\x07\n"


def test_chat_keeps_the_conversation(served: Served) -> None:
    done = run(
        "chat", "--system", "s", "--address", served.address, stdin=f"{FRANCE}\n\nmore\n/reset\nanew\n/exit\nnot read\n"
    )
    assert done.stdout == WHOLE * 3
    answer = WHOLE.removesuffix("\n")
    told = [[turn.content for turn in request.chat.messages] for request in served.server.requests]
    assert told == [["s", FRANCE], ["s", FRANCE, answer, "more"], ["s", "anew"]]


def test_chat_forgets_a_turn_that_failed(served: Served) -> None:
    done = run("chat", "--address", served.address, stdin="refuse\nmore\n")
    assert done.stdout == WHOLE
    assert f"INVALID_ARGUMENT: {REFUSED}" in done.stderr
    assert [turn.content for turn in served.server.requests[1].chat.messages] == ["more"]


def test_chat_goes_on_after_an_answer_that_was_stopped(served: Served) -> None:
    output, process, terminal = on_terminal(["chat", "--address", served.address], b"Paris.", sent=b"forever\n")
    process.send_signal(signal.SIGINT)
    assert served.server.cancelled.acquire(timeout=30)
    os.write(terminal, b"more\n/exit\n")
    assert process.wait(timeout=60) == 0
    assert b"Paris." in output
    turns = served.server.requests[1].chat.messages
    assert [turn.content for turn in turns] == ["forever", WHOLE.removesuffix("\n"), "more"]


def test_status_once(served: Served) -> None:
    lines = run("status", "--interval", "0.05", "--admin-address", served.address).stdout.splitlines()
    assert lines[0] == "tiny, policy fcfs, serving, up 2 s"
    assert {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines[1:]} == {
        "seats": "3 of 64 taken",
        "queue": "5 waiting",
        "pool": "70 free, 10 cached, 20 held blocks of 16 tokens",
        "held": "312 tokens in 320 slots (97.5 %)",
        "hit rate": "25.0 % of prompt tokens",
        "speed": "50.0 tokens/s",
        "requests": "9 accepted, 1 ended, 0 preemptions",
    }


def test_status_json(served: Served) -> None:
    reading = json.loads(run("status", "--json", "--interval", "0.05", "--admin-address", served.address).stdout)
    assert reading["pool"] == {
        "block_size": 16,
        "free": 70,
        "cached": 10,
        "held": 20,
        "tokens_held": 312,
        "reserved": 0,
    }
    assert (reading["running"], reading["waiting"], reading["policy"]) == (3, 5, "fcfs")
    assert (reading["hit_rate"], reading["tokens_per_second"]) == (0.25, 50.0)
    assert reading["totals"]["generated_tokens"] == 100


def test_status_on_a_terminal_goes_on_until_interrupted(served: Served) -> None:
    arguments = ["status", "--interval", "0.05", "--admin-address", served.address]
    output, process, terminal = on_terminal(arguments, until=b"up 5 s")
    assert b"up 3 s" in output
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        select.select([terminal], [], [], 0.1)
    assert process.wait(timeout=1) == 0


def test_status_without_a_server() -> None:
    assert run("status", "--admin-address", "127.0.0.1:1", expect=1).stderr == (
        "citybus: no server answers at 127.0.0.1:1 (Connection refused); start a server with 'citybus serve', or name "
        "one with --admin-address\n"
    )


def test_help_names_every_option_with_its_default() -> None:
    for command in (["serve"], ["generate"], ["chat"], ["status"], ["model", "add"], ["model", "list"]):
        text = run(*command, "--help").stdout
        options = [part for part in text.split("\n  -")[1:] if not part.startswith("h, --help")]
        assert options, command
        for option in options:
            takes_value = re.match(r"-?[\w-]+ [A-Z{]", option)
            assert not takes_value or "default" in option, option


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import citybus.v1; print('grpc' in set(sys.modules) - before)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_console_script_is_the_module() -> None:
    script = Path(sys.executable).parent / "citybus"
    assert (
        subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
        == run("--version").stdout
    )
