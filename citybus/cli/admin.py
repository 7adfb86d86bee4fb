"""What the operator's commands share: where the scheduler is, the admin token, and errors as one line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from citybus.admin.v1 import admin_pb2_grpc as pb_grpc
from citybus.cli.tls import add_tls, insecure, tls_of
from citybus.connection import ADMIN_TOKEN_VARIABLE, Metadata, open_channel
from citybus.errors import Disconnected, Insecure, Unreachable, from_rpc
from citybus.failure import Failure

DEFAULT_ADMIN_ADDRESS = "127.0.0.1:50052"
_TOKEN_FILE_VARIABLE = "CITYBUS_ADMIN_TOKEN_FILE"  # its name, not its value
TIMEOUT_S = 30.0


def add_admin_address(parser: argparse.ArgumentParser) -> None:
    """The options that say where the scheduler's operators connect, and how to be sure of who is there."""
    add_tls(parser)
    parser.add_argument(
        "--admin-address",
        metavar="HOST:PORT",
        default=os.environ.get("CITYBUS_ADMIN_ADDRESS", DEFAULT_ADMIN_ADDRESS),
        help=f"admin address of the scheduler (default: CITYBUS_ADMIN_ADDRESS, or {DEFAULT_ADMIN_ADDRESS})",
    )


def add_admin_options(parser: argparse.ArgumentParser) -> None:
    """The address, and where the token is."""
    add_admin_address(parser)
    parser.add_argument(
        "--admin-token-file",
        metavar="FILE",
        type=Path,
        default=os.environ.get(_TOKEN_FILE_VARIABLE) or None,
        help=f"file with the scheduler's token (default: {_TOKEN_FILE_VARIABLE}, or the token {ADMIN_TOKEN_VARIABLE})",
    )


@contextmanager
def operating(args: argparse.Namespace) -> Iterator[tuple[pb_grpc.AdminServiceStub, Metadata]]:
    """The service and the metadata to call it with. Raises `Failure` for whatever a call fails with."""
    metadata = _metadata(args.admin_token_file)
    with admin_channel(args) as channel:
        try:
            yield pb_grpc.AdminServiceStub(channel), metadata
        except grpc.RpcError as failure:
            error = from_rpc(failure, args.admin_address)
            if isinstance(error, Insecure):
                raise insecure(error) from None
            if isinstance(error, Unreachable):
                raise Failure(
                    f"{error}; start a server with 'citybus serve', or name one with --admin-address"
                ) from None
            if isinstance(error, Disconnected):
                raise Failure(f"{error.code.name}: {error}") from None
            raise Failure(f"the scheduler at {args.admin_address} says {error.code.name}: {error}") from None


def admin_channel(args: argparse.Namespace) -> grpc.Channel:
    """A channel to the scheduler's operator service. Raises `Failure`."""
    try:
        return open_channel(args.admin_address, tls=tls_of(args))
    except ValueError as error:
        raise Failure(str(error)) from error


def _metadata(path: Path | None) -> Metadata:
    try:
        token = path.read_text(encoding="utf-8").strip() if path else os.environ.get(ADMIN_TOKEN_VARIABLE, "")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"the admin token cannot be read from {path}: {error}") from error
    return (("authorization", f"Bearer {token}"),) if token else ()
