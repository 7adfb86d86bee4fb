"""The attacks of `bench.attacks`, in short: memory stays bounded, and afterwards all is as before.

What they cost others in time is measured by `bench.hostile`, as it depends on the machine.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from bench import attacks
from citybus import Client
from tests.harness import Bus, Service, canary

GROWTH_BYTES = 64 * 2**20
"""Sixteen of the largest messages, or 2,000 connections and calls of 32 KiB each."""

SHORT: dict[str, dict[str, int]] = {
    "slow_readers": {"count": 8},
    "idle_streams": {"count": 200},
    "dropped_connections": {"count": 2_000},
    "endless_prompt": {"count": 4},
    "billion_answers": {"count": 50},
    "pings": {"count": 10},
}


def resident_bytes(service: Service) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


@pytest.mark.parametrize("name", SHORT)
def test_attack_leaves_memory_bounded_and_nothing_running(bus: Bus, name: str) -> None:
    services = (bus.scheduler, bus.executor)
    with Client(bus.address) as client:
        known = canary(client).token_ids
        before = [resident_bytes(service) for service in services]
        ready: list[Any] = []
        asyncio.run(attacks.ATTACKS[name](bus.address, 1.0, lambda: ready.append(name), **SHORT[name]))
        during = [resident_bytes(service) for service in services]
        assert ready == [name]
        assert all(most - least < GROWTH_BYTES for least, most in zip(before, during, strict=True))
        canary(client, known)
    bus.wait_idle()
    assert [service.process.poll() for service in services] == [None, None]


def test_message_that_announces_a_gigabyte_is_refused_at_its_head(bus: Bus) -> None:
    """None of its bytes follow, and the server does not wait for them. Such a small model takes no more than 4 MiB."""
    answer = asyncio.run(answer_to_announced_gigabyte(bus.address))
    assert b"grpc-status\x018" in answer
    assert answer.endswith(b"larger than max (1000000000 vs. 4194304)")


async def answer_to_announced_gigabyte(address: str) -> bytes:
    async with asyncio.timeout(30), attacks.connection(address) as (reader, writer):
        writer.write(attacks.announced_gigabyte())
        return await reader.readuntil(b"4194304)")
