"""Golden replays: the events of a run of the scheduler core, and the plans it answered, byte for byte.

`python -m tests.scheduler.replay` records the scenarios below anew into tests/scheduler/golden/. Do so only where a
change of the plans is meant, and say in the commit what changed and why.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from citybus.executor.v1 import executor_pb2 as pb
from common import wire
from common.step import ExecutorInfo, Sampling, StepPlan, StepResult
from scheduler_svc.core.adoption import Residency
from scheduler_svc.core.guard import GuardedPolicy
from scheduler_svc.core.request import Request, SequenceUpdate
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.policies import BUILT_IN
from tests.fakes import INFO
from tests.scheduler.core.driver import Driver, request

GOLDEN = Path(__file__).parent / "golden"

Event = dict[str, Any]


class Recorder(Scheduler):
    """A scheduler that writes down what it is told and what it answers."""

    def __init__(self, info: ExecutorInfo, policy: str, term: int, window: int) -> None:
        super().__init__(info, GuardedPolicy(BUILT_IN[policy]()), term=term, window=window)
        start = {"event": "start", "info": _info_text(info), "policy": policy, "term": term, "window": window}
        self.events: list[Event] = [start]

    def _note(self, event: str, updates: list[SequenceUpdate], **facts: Any) -> list[SequenceUpdate]:
        self.events.append({"event": event, **facts, "updates": [_update_text(update) for update in updates]})
        return updates

    def add(self, request: Request) -> None:
        super().add(request)
        self._note("add", [], request=_request_text(request))

    def cancel(self, sequence_id: int, now: float) -> list[SequenceUpdate]:
        return self._note("cancel", super().cancel(sequence_id, now), sequence_id=sequence_id, now=now)

    def stop(self, sequence_id: int, num_output_tokens: int, now: float) -> list[SequenceUpdate]:
        updates = super().stop(sequence_id, num_output_tokens, now)
        return self._note("stop", updates, sequence_id=sequence_id, num_output_tokens=num_output_tokens, now=now)

    def expire(self, now: float) -> list[SequenceUpdate]:
        return self._note("expire", super().expire(now), now=now)

    def resume(self, info: ExecutorInfo, term: int, held: Residency, now: float) -> list[SequenceUpdate]:
        assert held == Residency(), "no scenario takes something over"
        return self._note("reset", super().resume(info, term, held, now), info=_info_text(info), term=term, now=now)

    def reset(self, info: ExecutorInfo, term: int, now: float) -> None:
        """What a record says of an executor that came back with nothing."""
        self.resume(info, term, Residency(), now)

    def schedule(self, now: float) -> StepPlan | None:
        plan = super().schedule(now)
        self._note("schedule", [], now=now, plan=None if plan is None else _text(wire.plan_to_pb(plan)))
        return plan

    def apply(self, result: StepResult, now: float) -> list[SequenceUpdate]:
        result = replace(result, execute_ns=0, idle_ns=0)
        return self._note("apply", super().apply(result, now), now=now, result=_text(wire.result_to_pb(result)))


def replay(recorded: list[Event]) -> list[Event]:
    """Tell a new scheduler the same events; returns what is recorded now."""
    start, *events = recorded
    core = Recorder(_info(start["info"]), start["policy"], start["term"], start["window"])
    for event in events:
        facts = {key: value for key, value in event.items() if key not in ("event", "updates", "plan")}
        if "request" in facts:
            facts["request"] = _request(facts["request"])
        if "info" in facts:
            facts["info"] = _info(facts["info"])
        if "result" in facts:
            facts["result"] = wire.result_from_pb(pb.StepResult.FromString(base64.b64decode(facts["result"])))
        getattr(core, event["event"])(**facts)
    return core.events


def read(name: str) -> list[Event]:
    """A recorded scenario."""
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


def record(name: str) -> list[Event]:
    """Play a scenario; returns its events."""
    info, policy, window, load = SCENARIOS[name]
    driver = Driver(info, BUILT_IN[policy](), window)
    recorder = Recorder(info, policy, 1, window)
    driver.scheduler = recorder
    load(driver)
    driver.drain()
    return recorder.events


# Scenarios


def shared_prefix(driver: Driver) -> None:
    """Ten users of one system prompt, whose questions part inside a block."""
    for user in range(10):
        driver.add(request(user, [*range(40), *([7] * (user % 4)), 50 + user], max_tokens=6 + user))
        driver.step()


def scarce_blocks(driver: Driver) -> None:
    """More than the pool holds: preemptions, evictions, resumed prefills."""
    for key in range(8):
        driver.add(request(key, [(key * token) % 11 for token in range(6 + key)], max_tokens=20, priority=key % 3))


def every_event(driver: Driver) -> None:
    """Cancels, deadlines, stop tokens, stops in the text, salts, seeds, a failed step and a restart."""
    chance = random.Random(5)
    for key in range(24):
        prompt = [*range(chance.choice([0, 5, 16, 17])), *chance.choices(range(50), k=3)]
        options = {
            "sampling": Sampling(temperature=chance.choice([0.0, 0.75]), seed=key),
            "stop_token_ids": frozenset(chance.sample(range(101), 3)),
            "max_tokens": chance.choice([1, 5, 17, 40]),
            "deadline": chance.choice([None, driver.now + 4]),
            "cache_salt": chance.choice([None, "", "blue"]),
        }
        driver.add(request(key, prompt, arrival=driver.now, **options))
        driver.sleep(0.25)
        driver.step()
        if key % 5 == 4:
            driver.cancel(chance.choice(driver.live))
        if key % 7 == 6:
            driver.stop(driver.live[0], keep=len(driver.tokens[driver.live[0]]) // 2)
        if key == 10:
            driver.fail_next()
        if key == 17:
            driver.restart(num_blocks=20)


SCENARIOS: dict[str, tuple[ExecutorInfo, str, int, Callable[[Driver], None]]] = {
    "shared_prefix": (INFO, "fcfs", 2, shared_prefix),
    "scarce_blocks_one_in_flight": (replace(INFO, block_size=4, num_blocks=16), "fcfs", 1, scarce_blocks),
    "scarce_blocks": (replace(INFO, block_size=4, num_blocks=16, max_step_tokens=9), "priority", 2, scarce_blocks),
    "every_event": (replace(INFO, num_blocks=24, max_sequences=6, max_step_tokens=33), "priority", 2, every_event),
}


# Events as text


def _text(message: pb.StepPlan | pb.StepResult) -> str:
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def _info_text(info: ExecutorInfo) -> Event:
    facts = {name: value for name, value in dataclasses.asdict(info).items() if name != "tokenizer_digest"}
    return {**facts, "epoch": info.epoch.hex()}


def _info(facts: Event) -> ExecutorInfo:
    return ExecutorInfo(**{**facts, "epoch": bytes.fromhex(facts["epoch"])})


def _request_text(request: Request) -> Event:
    newer = ("group", "beams", "is_ranked")  # only where they say something, so that older records stay as they are
    facts = {name: value for name, value in dataclasses.asdict(request).items() if value or name not in newer}
    return {**facts, "sampling": _sampling_text(request.sampling), "stop_token_ids": sorted(request.stop_token_ids)}


def _sampling_text(sampling: Sampling) -> Event:
    """Newer fields only where they say something, so that older records stay as they are."""
    always = ("temperature", "top_p", "top_k", "min_p", "seed")
    usual = dataclasses.asdict(Sampling())
    return {
        name: value for name, value in dataclasses.asdict(sampling).items() if name in always or value != usual[name]
    }


def _request(facts: Event) -> Request:
    changes = {
        "prompt": tuple(facts["prompt"]),
        "stop_token_ids": frozenset(facts["stop_token_ids"]),
        "sampling": Sampling(**facts["sampling"]),
    }
    return Request(**{**facts, **changes})


def _update_text(update: SequenceUpdate) -> list[Any]:
    reason = None if update.outcome is None else update.outcome.reason.value
    return [update.sequence_id, update.first_index, list(update.token_ids), reason]


def lines(events: list[Event]) -> Iterator[str]:
    """One JSON object a line."""
    for event in events:
        yield json.dumps(event, separators=(",", ":"))


def main() -> None:
    """Record every scenario anew."""
    for name in SCENARIOS:
        (GOLDEN / f"{name}.jsonl").write_text("\n".join(lines(record(name))) + "\n")


if __name__ == "__main__":
    main()
