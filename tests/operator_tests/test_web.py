import errno
import socket
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from octavo_operator.handlers.web import start_server
from octavo_operator.metrics import Metrics


def recording(key: tuple[str, str]) -> Iterator[bytes] | None:
    return iter([b"first\n", b"second\nthird\n"]) if key == ("team-a", "chat") else None


@pytest.fixture
async def site(unused_tcp_port: int) -> AsyncIterator[tuple[Any, str]]:
    controller: Any = SimpleNamespace(is_ready=False, stuck_looks=list, silent_watches=list)
    runner = await start_server(controller, None, Metrics(), recording, host="127.0.0.1", port=unused_tcp_port)
    yield controller, f"http://127.0.0.1:{unused_tcp_port}"
    await runner.cleanup()


async def fetch(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_readyz_waits_for_the_first_list(site: tuple[Any, str]) -> None:
    controller, url = site
    assert (await fetch(f"{url}/readyz"))[0] == 503
    controller.is_ready = True
    assert await fetch(f"{url}/readyz") == (200, "ok\n")


async def test_readyz_waits_for_the_lease_to_be_known(unused_tcp_port: int) -> None:
    controller: Any = SimpleNamespace(is_ready=True)
    elector: Any = SimpleNamespace(is_ready=False)
    runner = await start_server(controller, elector, Metrics(), recording, host="127.0.0.1", port=unused_tcp_port)
    url = f"http://127.0.0.1:{unused_tcp_port}/readyz"
    assert await fetch(url) == (503, "the Lease could not be read yet; the log says why\n")
    elector.is_ready = True
    assert await fetch(url) == (200, "ok\n")
    await runner.cleanup()


def addresses() -> list[str]:
    """Of this machine, as they stand in a URL."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1"]
    return ["127.0.0.1", "[::1]"]


@pytest.mark.parametrize("ipv6", [None, False, errno.EADDRNOTAVAIL], ids=["as it is", "none", "switched off"])
async def test_start_server_without_a_host_listens_on_all_addresses(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, ipv6: Any
) -> None:
    """A pod of an IPv6 cluster has no other."""
    create = socket.create_server

    def fails(address: Any, *, family: socket.AddressFamily = socket.AF_INET, **more: Any) -> socket.socket:
        if family is socket.AF_INET6:
            raise OSError(ipv6, "no such address")
        return create(address, family=family, **more)

    reached = addresses()
    if ipv6 is not None:
        reached = ["127.0.0.1"]
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: bool(ipv6))
        monkeypatch.setattr(socket, "create_server", fails)
    controller: Any = SimpleNamespace(is_ready=True)
    runner = await start_server(controller, None, Metrics(), recording, host="", port=unused_tcp_port)
    for address in reached:
        assert await fetch(f"http://{address}:{unused_tcp_port}/readyz") == (200, "ok\n")
    await runner.cleanup()


async def test_livez_names_what_hangs(site: tuple[Any, str]) -> None:
    controller, url = site
    assert await fetch(f"{url}/livez") == (200, "ok\n")
    controller.stuck_looks = lambda: [("default", "chat")]
    assert await fetch(f"{url}/livez") == (503, "looks that hang: default/chat\n")


async def test_livez_names_a_silent_watch(site: tuple[Any, str]) -> None:
    controller, url = site
    controller.silent_watches = lambda: ["Pod in team-a"]
    assert await fetch(f"{url}/livez") == (503, "watches that deliver nothing any more: Pod in team-a\n")


async def test_metrics_have_their_documented_names(site: tuple[Any, str]) -> None:
    _, url = site
    status, text = await fetch(f"{url}/metrics")
    assert status == 200
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert names >= {
        "octavo_operator_reconciles_total",
        "octavo_operator_reconcile_seconds",
        "octavo_operator_writes_total",
        "octavo_operator_watch_events_total",
        "octavo_operator_queue_depth",
        "octavo_operator_objects",
        "octavo_operator_last_list_timestamp_seconds",
        "octavo_operator_leader",
    }


async def test_start_server_on_a_taken_port_raises(site: tuple[Any, str]) -> None:
    controller, url = site
    port = int(url.rpartition(":")[2])
    with pytest.raises(OSError, match="address already in use"):
        await start_server(controller, None, Metrics(), recording, host="127.0.0.1", port=port)


async def test_autoscaling_is_the_recording_of_an_object(site: tuple[Any, str]) -> None:
    _, url = site
    assert await fetch(f"{url}/autoscaling/team-a/chat") == (200, "first\nsecond\nthird\n")


async def test_autoscaling_of_what_is_not_scaled_here_says_why(site: tuple[Any, str]) -> None:
    _, url = site
    why = "it has no spec.autoscaling, is stopped, or another operator leads\n"
    assert await fetch(f"{url}/autoscaling/team-a/other") == (404, f"this operator does not scale team-a/other: {why}")
