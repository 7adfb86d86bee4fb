"""A service that can be told to misbehave: `python -m stand_in PORT JOURNAL [--dies FILE] [--deaf] [--sick]`.

It serves the standard health check, writes its pid and "started" into JOURNAL, and "ended" at SIGTERM.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--dies", type=Path, default=Path("/nowhere"), help="it ends with code 3 once this exists")
    parser.add_argument("--deaf", action="store_true", help="ignores SIGTERM")
    parser.add_argument("--sick", action="store_true", help="is never healthy")
    args = parser.parse_args()
    told = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if args.deaf else lambda *_: told.set())
    write(args.journal, "started")
    server = grpc.server(ThreadPoolExecutor(2))
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.NOT_SERVING if args.sick else health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    server.add_insecure_port(f"127.0.0.1:{args.port}")
    server.start()
    print(
        json.dumps({"event": "odd", "level": "warning", "service": "x", "port": args.port}), file=sys.stderr, flush=True
    )
    while not args.dies.exists():
        if told.wait(0.02):
            write(args.journal, "ended")
            return 0
    print("first line of the trace\nboom: set --frob to 3", file=sys.stderr, flush=True)
    return 3


def write(journal: Path, what: str) -> None:
    with journal.open("a") as file:
        file.write(f"{os.getpid()} {sys.argv[1]} {what}\n")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
