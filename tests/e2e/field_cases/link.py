"""A TCP connection that a test can cut, hang or half close, between two processes that know nothing of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Link:
    """Passes every connection to `address` on to `target` ("host:port"), which may be set later."""

    def __init__(self, target: str = "") -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._whole = True
        self._flows = threading.Event()
        self._flows.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Where to connect to."""
        return "127.0.0.1:{1}".format(*self._listener.getsockname())

    def cut(self) -> None:
        """Close every connection, and every new one as soon as it is made."""
        self._whole = False
        for pair in self._pairs:
            _close(*pair)
        self._pairs.clear()

    def hang(self) -> None:
        """Let nothing pass; nobody is told."""
        self._flows.clear()

    def mend(self) -> None:
        """Pass everything on again, what was held back by `hang` too."""
        self._whole = True
        self._flows.set()

    def half_close(self) -> None:
        """Tell the target that nothing more will come; what it sends still arrives."""
        for _, behind in self._pairs:
            with contextlib.suppress(OSError):
                behind.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        self.cut()
        self._flows.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                front, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(front,), daemon=True).start()

    def _connect(self, front: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            behind = socket.create_connection((host, int(port)), timeout=5)
        except (OSError, ValueError):
            _close(front)
            return
        behind.settimeout(None)
        self._pairs.append((front, behind))
        if not self._whole:
            _close(front, behind)
        for source, sink in ((front, behind), (behind, front)):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _close(source, sink)


def _close(*ends: socket.socket) -> None:
    """Shut first: closing alone does not wake a thread that reads."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
