"""How another command of the same user asks a running `citybus serve` to upgrade: a Unix socket beside the journal.

One line of request; lines of what happens; and a last one with the verdict. A socket whose owner has died refuses
connections, so that nothing stale is ever taken for a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from citybus.failure import Failure
from citybus.supervisor.child import Say

Replace = Callable[[Say], Awaitable[None]]
"""Replaces the scheduler and tells how it goes. Raises `Failure`."""

_NAMES = "serve-*.socket"
_UPGRADE = "upgrade"
_NEWS, _DONE, _FAILED = "news ", "done", "failed "


def state_folder() -> Path:
    """The user's folder for the state of servers, in the place of the XDG base directory specification."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local/state"  # noqa: PTH117
    return base / "citybus"


def control_path(listen: str) -> Path:
    """The socket of the `citybus serve` whose scheduler listens on that port."""
    return state_folder() / f"serve-{listen.rpartition(':')[2]}.socket"


@asynccontextmanager
async def controlled(path: Path, replace: Replace, say: Say) -> AsyncIterator[None]:
    """Answer requests at `path` inside the `async with` block; where that is not possible, the user is told."""
    try:
        listening = _listen(path)
    except OSError as error:
        say(f"'citybus upgrade' will not reach this server: {path} cannot be opened ({error.strerror or error})")
        yield
        return
    server = await asyncio.start_unix_server(lambda reader, writer: _answer(reader, writer, replace), sock=listening)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def ask_to_upgrade(path: Path, say: Say) -> None:
    """Have the server at `path` replace its scheduler; returns once the new one serves. Raises `Failure`."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(os.fspath(path))
        except OSError as error:
            raise Failure(
                f"no 'citybus serve' of this user can be reached at {path} ({error.strerror or error}): start one, or "
                "say with --listen where it listens; docs/docker.md says how a container is upgraded"
            ) from error
        with connection.makefile("rw", encoding="utf-8") as lines, contextlib.suppress(OSError):
            print(_UPGRADE, file=lines, flush=True)
            for line in map(str.rstrip, lines):
                if line.startswith(_NEWS):
                    say(line.removeprefix(_NEWS))
                elif line.startswith(_FAILED):
                    raise Failure(line.removeprefix(_FAILED))
                elif line == _DONE:
                    return
    raise Failure("'citybus serve' ended before it said how the upgrade went: see what it printed")


def _listen(path: Path) -> socket.socket:
    """A socket that only this user may connect to. Those beside it whose owner was killed go. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for other in path.parent.glob(_NAMES):
        _remove_stale(other)
    if path.exists() and not _remove_stale(path):
        raise OSError("another 'citybus serve' answers there")
    listening, made = socket.socket(socket.AF_UNIX), path.with_name(f"{path.name}.{os.getpid()}")
    try:
        listening.bind(os.fspath(made))
        made.chmod(0o600)  # nobody can connect before somebody listens
        listening.listen()
        made.replace(path)  # it is there once somebody listens: until then it would be taken for a stale one
        return listening
    except OSError:
        listening.close()
        made.unlink(missing_ok=True)
        raise


def _remove_stale(path: Path) -> bool:
    """Remove a socket, and return True, where its owner has died."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return True
        except OSError:  # it is busy, or another one's, or has gone
            return not path.exists()
    return False


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replace: Replace) -> None:
    """One request. It is carried out to its end, whether somebody still listens or not."""

    def write(line: str) -> None:
        writer.write(f"{line}\n".encode())

    with contextlib.suppress(ConnectionError), contextlib.closing(writer):
        if (await reader.readline()).decode("utf-8", "replace").strip() != _UPGRADE:
            return
        try:
            await replace(lambda line: write(_NEWS + line))
        except (Failure, OSError) as failure:  # the latter: no process could be started
            write(_FAILED + str(failure))
        else:
            write(_DONE)
        await writer.drain()
