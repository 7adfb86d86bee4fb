"""How much of the held KV memory holds tokens? Runs a mixed workload and reads the pool while it runs.

Run a server first, then: python -m bench.kv_utilisation
Utilisation = tokens stored / token slots in held blocks, averaged over readings with at least 8 sequences running.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys

import grpc

from citybus import AsyncClient
from citybus.admin.v1 import admin_pb2 as pb
from citybus.admin.v1 import admin_pb2_grpc

MIN_RUNNING = 8
READ_INTERVAL_S = 0.05


async def read_pool(admin: str, readings: list[pb.GetStatusResponse]) -> None:
    """Read the pool again and again, until cancelled."""
    async with grpc.aio.insecure_channel(admin) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        while True:
            readings.append(await stub.GetStatus(pb.GetStatusRequest()))
            await asyncio.sleep(READ_INTERVAL_S)


async def run(address: str, admin: str, requests: int, seed: int) -> list[pb.GetStatusResponse]:
    """Random token prompts of 16 to 512 tokens, answers of 16 to 256, all sent within two seconds."""
    draw = random.Random(seed)
    readings: list[pb.GetStatusResponse] = []
    async with AsyncClient(address) as client:
        await client.wait_ready()
        vocab = (await client.models())[0].vocab_size

        async def one() -> None:
            prompt = [draw.randrange(vocab) for _ in range(draw.randint(16, 512))]
            max_tokens, delay = draw.randint(16, 256), draw.random() * 2
            await asyncio.sleep(delay)
            await client.complete(token_ids=prompt, temperature=0.0, max_tokens=max_tokens, ignore_eos=True)

        reader = asyncio.create_task(read_pool(admin, readings))
        await asyncio.gather(*(one() for _ in range(requests)))
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
    return readings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:50051", help="the server (default %(default)s)")
    parser.add_argument("--admin", default="127.0.0.1:50052", help="its admin port (default %(default)s)")
    parser.add_argument("--requests", type=int, default=64, help="requests in all (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (default %(default)s)")
    options = parser.parse_args()
    readings = asyncio.run(run(options.address, options.admin, options.requests, options.seed))
    busy = [r for r in readings if r.running >= MIN_RUNNING]
    if not busy:
        print(f"never were {MIN_RUNNING} sequences running: send more --requests", file=sys.stderr)
        return 1
    shares = [r.pool.tokens_held / (r.pool.held * r.pool.block_size) for r in busy]
    report = {
        "readings": len(busy),
        "utilisation mean": round(statistics.mean(shares), 4),
        "utilisation min": round(min(shares), 4),
        "most running": max(r.running for r in busy),
        "block size": busy[0].pool.block_size,
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
