"""The benchmarks against a real scheduler and executor of a tiny model."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from citybus import AsyncClient
from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc
from citybus.bench.load import SHORT, LoadResult, run_load
from citybus.bench.prompts import prompts
from citybus.bench.run import Server, Settings, find_target, run
from citybus.bench.saturation import Limits
from citybus.bench.workload import Call
from tests.checkpoints import write_tiny
from tests.citybus.test_cli import CITYBUS
from tests.citybus.test_cli import run as citybus
from tests.harness import Bus, running_bus, wait_until

VOCAB = 272
BLOCKS = 24
LENGTHS = ("--prompt-tokens", "16-100", "--output-tokens", "8-100")


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """Context 256, and a pool that holds little more."""
    model = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny", max_model_len=256)
    with running_bus(model, tmp_path_factory.mktemp("bus"), executor=("--num-blocks", str(BLOCKS))) as started:
        yield started


def addresses(bus: Bus) -> tuple[str, ...]:
    return ("--address", bus.address, "--admin-address", str(bus.scheduler.facts["admin_listen"]))


async def sent(bus: Bus, calls: list[Call], *, seed: int = 0, salt: str = "s") -> LoadResult:
    async with AsyncClient(bus.address, reconnect=None) as client:
        return await run_load(client, calls, prompts(calls, VOCAB, seed), salt)


def live_policy(bus: Bus) -> pb.GetPolicyResponse:
    with grpc.insecure_channel(bus.scheduler.facts["admin_listen"]) as channel:
        return admin_pb2_grpc.AdminServiceStub(channel).GetPolicy(pb.GetPolicyRequest(), timeout=10)


async def test_answers_have_their_lengths_and_times_are_in_order(bus: Bus) -> None:
    calls = [Call(0.2, 20, 12), Call(0.0, 5, 1), Call(0.1, 33, 7)]
    result = await sent(bus, calls)
    assert [record.call for record in result.records] == calls
    for record in result.records:
        assert record.failure is None
        assert len(record.token_times) == record.call.num_output
        assert record.planned == record.call.at <= record.sent
        moments = [record.sent, *record.token_times, record.ended]
        assert moments == sorted(moments)
        assert 0 < record.queued_s <= record.ended - record.sent


async def test_requests_are_sent_at_their_times_while_others_are_unanswered(bus: Bus) -> None:
    """Open loop: the long answer is the last to end and holds nobody up."""
    calls = [Call(0.0, 4, 200), *(Call(0.02 * index, 4, 1) for index in range(1, 6))]
    records = (await sent(bus, calls)).records
    assert all(record.sent >= record.planned for record in records)
    assert max(record.sent for record in records) < records[0].ended


async def test_equal_prefixes_are_found_in_the_cache_within_a_salt(bus: Bus) -> None:
    calls = [Call(0.0, 70, 1, prefix=(1,), prefix_block=64)]
    first, again, other = [
        (await sent(bus, calls, salt=salt)).records[0].cached_tokens for salt in ("one", "one", "two")
    ]
    assert (first, again, other) == (0, 69, 0)
    tail = [Call(0.0, 90, 1, prefix=(1,), prefix_block=64)]
    assert (await sent(bus, tail, seed=0, salt="one")).records[0].cached_tokens >= 64


async def test_failures_are_counted_by_their_codes(bus: Bus) -> None:
    """A prompt over the context is refused; a reply that does not fit it ends early."""
    records = (await sent(bus, [Call(0.0, 300, 2), Call(0.0, 250, 20), Call(0.0, 4, 2)])).records
    assert [record.failure for record in records] == ["INVALID_ARGUMENT", SHORT, None]


async def test_a_run_measures_and_reads_the_server(bus: Bus) -> None:
    settings = Settings(Server(*addresses(bus)[1::2]))
    target = await find_target(settings.server)
    assert (target.model.vocab_size, target.max_tokens) == (VOCAB, 256)
    result = await run(settings, [Call(0.0, 100, 60)] * 6, "mine")
    assert result.summary.failures == {}
    assert result.summary.output_tokens_per_s == pytest.approx(360 / result.summary.window.length)
    assert result.server is not None and result.server.kv_utilisation is not None
    assert 0.5 < result.server.kv_utilisation <= 1.0
    assert 1 <= result.server.most_running <= 6
    assert {reading.policy for reading in result.readings} == {"fcfs"}
    unread = await run(Settings(Server(bus.address)), [Call(0.0, 5, 2)], "unread")
    assert (unread.server, unread.readings) == (None, ())


async def test_a_client_that_is_held_up_makes_the_result_invalid(bus: Bus) -> None:
    calls = [Call(0.01 * index, 4, 1) for index in range(30)]

    async def block() -> None:
        await asyncio.sleep(0.25)
        time.sleep(0.4)

    blocking = asyncio.create_task(block())
    result = await sent(bus, calls)
    await blocking
    (first, *_) = faults = result.client.faults(Limits(cpu=99.0), median_e2e_s=0.0)
    assert first.startswith("requests were sent up to")
    assert len(faults) >= 1
    assert result.client.late_max_s > 0.1


def test_serve_prints_and_writes_what_it_measured(bus: Bus, tmp_path: Path) -> None:
    trace, path = tmp_path / "trace.jsonl", tmp_path / "result.json"
    lines = [{"t_s": 0.05 * n, "tenant": n % 2, "input_tokens": 400 + n, "output_tokens": 40} for n in range(12)]
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    command = [*CITYBUS, "bench", "serve", *addresses(bus), "--trace", str(trace), "--requests", "10"]
    done = subprocess.run(
        [*command, "--json", str(path), "--slo-ttft-ms", "60000", "--label", "mine"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = json.loads(path.read_text(encoding="utf-8"))
    assert done.returncode == (0 if found["valid"] else 1), done.stderr
    assert "time to first token, ms" in done.stdout and "goodput" in done.stdout
    assert found["workload"] == {
        **{"trace": "trace.jsonl", "requests": 10, "seed": 0},
        **{"arrivals": "trace", "rate": None, "variation": 1.0},
    }
    assert found["label"] == "mine"
    assert len(found["records"]) == 10
    first = found["records"][0]
    assert (first["call"]["num_prompt"], first["call"]["num_output"]) == (227, 22), "scaled by 256 / 451"
    assert len(first["token_times"]) == 22
    assert found["summary"]["failures"] == {}
    assert found["summary"]["good_share"] == 1.0
    assert found["readings"]


def test_what_cannot_be_done_is_said_before_the_work(bus: Bus, tmp_path: Path) -> None:
    here = addresses(bus)
    for options, reason in (
        (("--trace", str(tmp_path / "none")), "the trace cannot be read"),
        (("--prompt-tokens", "500"), "ask for less with --prompt-tokens"),
        ((*LENGTHS, "--arrivals", "trace"), "needs a --trace with times"),
        ((*LENGTHS, "--arrivals", "poisson"), "give --rate"),
        (("--json", str(tmp_path / "none" / "x.json")), "is no folder to write into"),
    ):
        assert reason in citybus("bench", "serve", *here, *options, expect=1).stderr
    away = ("--address", bus.address, "--admin-address", "127.0.0.1:1")
    assert "name the admin address" in citybus("bench", "serve", *away, expect=1).stderr
    assert "start a server" in citybus("bench", "serve", "--address", "127.0.0.1:1", expect=1).stderr
    assert "no policy 'nonsense'" in citybus("bench", "compare", *here, *LENGTHS, "--mode", "nonsense", expect=1).stderr


def test_compare_swaps_the_policy_and_brings_it_back(bus: Bus, tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    citybus("policy", "set", "priority", "ageing_s=7", "--admin-address", addresses(bus)[3])
    command = [*CITYBUS, "bench", "compare", *addresses(bus), "--rounds", "1", "--requests", "12", "--json", str(path)]
    done = subprocess.run([*command, *LENGTHS], capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert done.returncode == (0 if found["valid"] else 1), done.stderr
    assert [trial["policy"] for trial in found["trials"]] == ["static_batch", "contiguous", "fcfs"]
    assert [trial["summary"]["failures"] for trial in found["trials"]] == [{}, {}, {}]
    static, contiguous, paged = (trial["server"] for trial in found["trials"])
    assert static["idle_seats"] > 0 and contiguous["idle_seats"] == paged["idle_seats"] == 0
    assert static["kv_utilisation"] < contiguous["kv_utilisation"] < paged["kv_utilisation"]
    assert "continuous, paged" in done.stdout
    now = live_policy(bus)
    assert (now.name, now.parameters["ageing_s"]) == ("priority", "7.0")
    citybus("policy", "set", "fcfs", "--admin-address", addresses(bus)[3])


def test_compare_brings_the_policy_back_on_an_interrupt(bus: Bus) -> None:
    command = [*CITYBUS, "bench", "compare", *addresses(bus), "--rounds", "90", "--mode", "static_batch", *LENGTHS]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: live_policy(bus).name == "static_batch", "the policy is swapped", 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert live_policy(bus).name == "fcfs"
    bus.wait_idle()


def test_cost_runs_a_shape_and_prices_it(bus: Bus, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    slow = ("--slo-ttft-ms", "60000", "--slo-tpot-ms", "60000", "--shape", "steady", "--requests", "8")
    done = subprocess.run(
        [*CITYBUS, "bench", "cost", *addresses(bus), "--price-per-hour", "2", *slow, "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    (shape,) = json.loads(path.read_text(encoding="utf-8"))["shapes"]
    assert shape["name"] == "steady"
    assert (done.returncode, shape["prices"] is None) in ((0, False), (1, True)), done.stderr
    if shape["prices"]:  # a busy machine may have held the client up
        assert shape["prices"]["per_million_output"] == pytest.approx(
            4 * shape["prices"]["per_million_input"], rel=1e-3
        )
    else:
        assert shape["refusal"].startswith("not valid")
    assert "steady" in done.stdout
