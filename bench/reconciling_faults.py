"""The scenarios of bench-operator in which something fails: what must be right again afterwards, and how soon it is."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from bench.reconciling_field import Field, Sizes, port_of
from bench.reconciling_world import SERVICES, Manifest, Proxy, children_path, until
from bench.report import say

__all__ = ["errors", "failover", "gap", "outage"]

RESYNC_SECONDS = 300.0


@contextmanager
def _through_proxy(field: Field) -> Iterator[Proxy]:
    """The operator sees the API server through a proxy meanwhile. It holds no Lease: losing one ends the process."""
    field.operator.stop()
    direct = field.operator
    with Proxy(field.world.cluster()) as proxy:
        field.operator = field.world.operator(f"--resync-seconds={RESYNC_SECONDS:.0f}", server=proxy.url)
        field.operator.start()
        try:
            yield proxy
        finally:
            field.operator.stop()
            field.operator = direct
    field.operator.start()


async def _mended(field: Field, fail: Callable[[], Awaitable[None]], heal: Callable[[], Awaitable[None]]) -> float:
    """Edits objects, deletes some and deletes children while something is wrong; the seconds from healing to harmony."""
    edited, bereft, gone = (field.names[start : start + 5] for start in (0, 5, 10))
    await fail()
    for name in edited:
        await field.edit(name)
    for name in bereft:
        await field.api.call("DELETE", f"{children_path('services')}/{name}")
    for name in gone:
        await field.api.call("DELETE", f"{SERVICES}/{name}")
    field.names = [name for name in field.names if name not in gone]
    await heal()
    began = time.monotonic()
    while time.monotonic() - began < RESYNC_SECONDS + 60:
        shown = [await field.api.call("GET", f"{children_path('services')}/{name}") for name in edited]
        known = field.operator.metrics()['octavo_operator_objects{kind="InferenceService"}']
        if (
            all(port_of(one) == field.ports[one["metadata"]["name"]] for one in shown)
            and set(bereft) <= await field.api.names(children_path("services"))
            and known == len(await field.api.names(SERVICES))
        ):
            assert field.process.pid, "it must not have ended"
            return time.monotonic() - began
        await asyncio.sleep(0.2)
    say("    not mended in time")
    return time.monotonic() - began


async def outage(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The API server is away, for the operator; the world goes on."""
    with _through_proxy(field) as proxy:
        await field.quiet()
        say(f"  no API server for {sizes.outage_seconds} s")

        async def fail() -> None:
            proxy.down = True
            proxy.cut_watches()

        async def heal() -> None:
            await asyncio.sleep(sizes.outage_seconds)
            proxy.down = False

        figures["outage_recovery_s"] = await _mended(field, fail, heal)
    say(f"    {figures['outage_recovery_s']:.1f} s until all was right")


async def errors(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The API server answers nothing but an error."""
    for status in (403, 500, 503):
        with _through_proxy(field) as proxy:
            await field.quiet()
            say(f"  nothing but {status} for {sizes.error_seconds} s")

            async def fail(proxy: Proxy = proxy, status: int = status) -> None:
                proxy.status, proxy.down = status, True
                proxy.cut_watches()

            async def heal(proxy: Proxy = proxy) -> None:
                await asyncio.sleep(sizes.error_seconds)
                proxy.down = False

            figures[f"error_{status}_recovery_s"] = await _mended(field, fail, heal)
        say(f"    {figures[f'error_{status}_recovery_s']:.1f} s until all was right")


async def gap(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The watches have lost their place (410 Gone): what was deleted meanwhile nobody reports."""
    del sizes
    with _through_proxy(field) as proxy:
        await field.quiet()
        say("  watches that expire, with deletions in the gap")

        async def fail() -> None:
            field.operator.send(signal.SIGSTOP)
            proxy.gone_watches = 10
            proxy.cut_watches()

        async def heal() -> None:
            await asyncio.sleep(2)  # so that the garbage is collected in the gap too
            field.operator.send(signal.SIGCONT)

        figures["gap_recovery_s"] = await _mended(field, fail, heal)
        assert proxy.gone_watches < 10, "no watch was answered 410"
    say(f"    {figures['gap_recovery_s']:.1f} s until all was right")


async def failover(field: Field, sizes: Sizes, figures: dict[str, float]) -> None:
    """The leader is killed; an edit follows at once."""
    del sizes
    other = field.world.operator(*field.operator.arguments)
    other.start()
    await field.quiet()
    name = field.names[0]
    assert field.operator.metrics()["octavo_operator_leader"] == 1, "the first operator does not lead"
    field.operator.stop(signal.SIGKILL)
    began = time.monotonic()
    field.operator = other
    await field.edit(name)
    followed: list[float] = []

    def on_service(_: str, manifest: Manifest, now: float) -> None:
        if manifest["metadata"]["name"] == name and port_of(manifest) == field.ports[name]:
            followed.append(now)

    async with field.api.watching(children_path("services"), on_service):
        await until(lambda: bool(followed), 60, "the other operator to take over")
    figures["failover_s"] = followed[0] - began
    say(f"    {figures['failover_s']:.1f} s from the kill to the other's first write")
