"""Whether services take their options, asked of the services themselves."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from citybus.failure import Failure
from citybus.supervisor.child import Child, Service
from citybus.supervisor.keeper import quote


async def check(services: Sequence[Service]) -> None:
    """Have each check its options (`--check`). Raises `Failure` with what those say that refuse them."""
    refusals = zip(services, await asyncio.gather(*map(_refusal, services)), strict=True)
    if lines := [f"the {each.name} refuses its options{quote(words)}" for each, words in refusals if words is not None]:
        raise Failure("\n".join(lines))


async def _refusal(service: Service) -> str | None:
    """The last thing that it says where it does not take them; None where it does."""
    checking = dataclasses.replace(service, module=(*service.module, "--check"))
    child = Child(checking, lambda line: None, verbose=False)
    await child.start()
    return None if await child.ended() == 0 else child.last_words
