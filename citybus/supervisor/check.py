"""Whether services take their options, asked of the services themselves, before any of them is started."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from citybus.failure import Failure
from citybus.supervisor.child import Child, Service
from citybus.supervisor.keeper import quote


async def check(services: Sequence[Service]) -> None:
    """Have each check its options (`--check`). Raises `Failure` with what the first one says that refuses them."""
    for service, refusal in zip(services, await asyncio.gather(*map(_refusal, services)), strict=True):
        if refusal is not None:
            raise Failure(f"the {service.name} refuses its options{quote(refusal)}")


async def _refusal(service: Service) -> str | None:
    """The last thing that it says where it does not take them; None where it does."""
    checking = dataclasses.replace(service, module=(*service.module, "--check"))
    child = Child(checking, lambda line: None, verbose=False)
    await child.start()
    return None if await child.ended() == 0 else child.last_words
