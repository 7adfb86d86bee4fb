"""A service that can be told to misbehave: `python -m stand_in PORT JOURNAL [--dies FILE] [--deaf] [--sick]
[--lock FILE]`.

It serves the standard health check, writes its pid and "started" into JOURNAL, "ended" at SIGTERM, "left" at SIGUSR1.
The variable STAND_IN_VERSION is the version it says it has; "broken" ends at its start.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--dies", type=Path, default=Path("/nowhere"), help="it ends once this exists")
    parser.add_argument("--code", type=int, default=3, help="the code that it then ends with")
    parser.add_argument("--deaf", action="store_true", help="ignores SIGTERM")
    parser.add_argument("--sick", action="store_true", help="is never healthy")
    parser.add_argument("--lock", type=Path, help="who holds it serves, who waits for it stands by")
    args = parser.parse_args()
    version = os.environ.get("STAND_IN_VERSION", "1")
    log("starting", "info", version=version)
    if version == "broken":
        print("boom: no such flag", file=sys.stderr, flush=True)
        return 2
    if args.lock:
        stand_by(args.lock)
    told: SimpleQueue[str] = SimpleQueue()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if args.deaf else lambda *_: told.put("ended"))
    signal.signal(signal.SIGUSR1, lambda *_: told.put("left"))
    write(args.journal, "started")
    server = grpc.server(ThreadPoolExecutor(2))
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.NOT_SERVING if args.sick else health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_insecure_port(f"127.0.0.1:{args.port}")
    server.start()
    log("odd", "warning", port=args.port)
    while not args.dies.exists():
        with contextlib.suppress(Empty):
            write(args.journal, told.get(timeout=0.02))
            return 0
    print("first line of the trace\nboom: set --frob to 3", file=sys.stderr, flush=True)
    return int(args.code)


def stand_by(lock: Path) -> None:
    """Return once the lock is ours, until this process ends."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log("standby", "info", journal=str(lock))
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def log(event: str, level: str, **values: object) -> None:
    line = {"event": event, "level": level, "service": "x", **values}
    print(json.dumps(line), file=sys.stderr, flush=True)


def write(journal: Path, what: str) -> None:
    with journal.open("a") as file:
        file.write(f"{os.getpid()} {sys.argv[1]} {what}\n")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
