"""What the health service says of a scheduler."""

from __future__ import annotations

from common.grpc_server import GrpcServer
from scheduler_svc.journal import Journal
from scheduler_svc.loop import SchedulerLoop


class Health:
    """A server is healthy where it takes new requests: it drives an executor, does not drain, and can write its
    journal. Who has a stream goes on with it meanwhile."""

    def __init__(self, server: GrpcServer, loop: SchedulerLoop, journal: Journal) -> None:
        self._server = server
        self._loop = loop
        self._journal = journal
        journal.watch(self.tell)

    async def tell(self) -> None:
        """Say how it is now; to be called whenever that may have changed."""
        takes_requests = self._loop.info() is not None and not self._loop.draining and not self._journal.fails
        await self._server.set_serving(takes_requests)
