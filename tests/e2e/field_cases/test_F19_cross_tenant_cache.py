"""What a tenant has asked is not to be learnt from the prefix cache. Tenants are those of keys, not of what is said.

Its other sign, the time to the first token, follows from what is computed, and that from `cached_tokens`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from citybus import Client, PermissionDenied
from citybus.keys import add_line, make_key
from tests.e2e.field_cases.field import GREEDY
from tests.harness import Bus, running_bus

PROMPT = [11 * place % 250 for place in range(1, 160)]


@dataclass
class Town:
    """A bus that asks for keys, and a client of each tenant."""

    bus: Bus
    clients: dict[str, Client] = field(default_factory=dict)

    def cached(self, who: str, prompt: list[int], **options: str) -> int:
        """How many tokens of the prompt were found."""
        answer = self.clients[who].complete(token_ids=prompt, max_tokens=1, **GREEDY, **options)
        return answer.finish.usage.cached_tokens


@pytest.fixture(scope="module")
def town(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    keys = {}
    for tenant in ("x", "y", "a", "ab"):
        keys[tenant], line = make_key(tenant)
        add_line(folder / "keys", line)
    flags = ("--keys-file", str(folder / "keys"))
    with ExitStack() as stack:
        bus = stack.enter_context(running_bus(tiny, folder / "bus", executor=("--num-threads", "1"), scheduler=flags))
        clients = {name: stack.enter_context(Client(bus.address, api_key=key)) for name, key in keys.items()}
        yield Town(bus, clients)
        bus.wait_idle()


def test_F19_another_tenant_finds_nothing_and_the_same_one_all(town: Town) -> None:
    assert [town.cached(tenant, PROMPT) for tenant in "xyxy"] == [0, 0, len(PROMPT) - 1, len(PROMPT) - 1]


def test_F19_saying_to_be_another_tenant_does_not_help(town: Town) -> None:
    prompt = [1, *PROMPT]
    assert town.cached("x", prompt) == 0
    for name in ("x", "a"):
        with pytest.raises(PermissionDenied, match="tenant: the API key is another tenant's"):
            town.cached("y", prompt, tenant=name)
    assert town.cached("y", prompt, tenant="y") == 0
    assert town.cached("x", prompt, tenant="x") == len(prompt) - 1


def test_F19_tenants_and_salts_do_not_run_into_each_other(town: Town) -> None:
    prompt = [2, *PROMPT]
    spaces: list[tuple[str, dict[str, str]]] = [
        ("a", {"cache_salt": "bc"}),
        ("ab", {"cache_salt": "c"}),
        ("a", {}),
        ("a", {"cache_salt": ""}),
        ("a", {"cache_salt": "null"}),
        ("x", {"cache_salt": '["a", null]'}),
        ("x", {"cache_salt": "a"}),
    ]
    assert [town.cached(tenant, prompt, **options) for tenant, options in spaces] == [0] * len(spaces)
    again = [town.cached(tenant, prompt, **options) for tenant, options in spaces]
    assert again == [len(prompt) - 1] * len(spaces)
