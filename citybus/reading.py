"""How far an answer has been read: what both streams remember of it, to give it without gap or repeat."""

from __future__ import annotations

from citybus.messages import Delta, Finish, delta_of, finish_of
from citybus.v1 import generation_pb2 as pb


class Reading:
    """The answer to `request`, sample by sample."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self._request = request
        self._num_samples = max(1, request.samples.n)
        self._next_indexes: dict[int, int] = {}
        self._finishes: dict[int, Finish] = {}

    @property
    def is_complete(self) -> bool:
        """Whether every sample has ended."""
        return len(self._finishes) == self._num_samples

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """How each sample ended. Raises `RuntimeError` before the stream has been read to its end."""
        if not self.is_complete:
            raise RuntimeError("the stream has not ended: read it to its end first")
        return tuple(self._finishes[sample] for sample in range(self._num_samples))

    def take(self, message: pb.GenerateResponse) -> Delta | None:
        """The part of the answer in the next message; None in one that only says how a sample ended, or says so again,
        as to who has come back for the others."""
        if message.sample in self._finishes:
            return None
        self._next_indexes[message.sample] = message.first_index + len(message.token_ids)
        if (finish := finish_of(message)) is not None:
            self._finishes[message.sample] = finish
        return delta_of(message)

    def rest(self, request_id: str) -> pb.AttachRequest:
        """Asks for what has not been read."""
        request = pb.AttachRequest(tenant=self._request.tenant, request_id=request_id)
        starts = [self._next_indexes.get(sample, 0) for sample in range(max(self._next_indexes, default=0) + 1)]
        if self._num_samples == 1:
            request.next_index = starts[0]
        else:
            request.next_indexes.extend(starts)
        return request
