"""Two operators and one Lease: one of them works, whatever happens to it, and the other one goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from faulty_proxy import FaultyProxy
from operator_harness import Kubectl, OperatorProcess, World, condition, eventually

pytestmark = pytest.mark.cluster

TAKEOVER = 18.0
"""Seconds: the lease, a look before it and one after it, and the write."""
HANDOVER = 4.0


@pytest.fixture
def kubectl(world: World) -> Iterator[Kubectl]:
    own = world.namespace()
    world.admin.within(world.home)("delete", "lease", world.home, "--ignore-not-found")
    yield own
    own("delete", "isvc", "--all", "--wait=false")


@pytest.fixture
def proxy(world: World) -> Iterator[FaultyProxy]:
    with FaultyProxy(world.cluster()) as between:
        yield between


@pytest.fixture
def pair(world: World, kubectl: Kubectl) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """The one that leads, and the one that stands by; both know `chat`."""
    leader, other = (world.operator(f"--lease={world.home}/{world.home}") for _ in range(2))
    leader.start()
    eventually(lambda: leads(leader))
    other.start()
    followed(kubectl, 80)
    yield leader, other
    for process in (leader, other):
        assert process.process is not None
        if process.process.poll() is None:
            process.stop()


def leads(process: OperatorProcess) -> bool:
    return process.metrics()["octavo_operator_leader"] == 1


def serve(kubectl: Kubectl, port: int, name: str = "chat") -> None:
    spec: dict[str, Any] = {"model": {"uri": "file:///model"}, "replicas": 0, "service": {"port": port}}
    kubectl.apply(
        {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}
    )


def followed(kubectl: Kubectl, port: int, seconds: float = 10.0) -> None:
    """Serves at a port, and waits until the Service and the status say so."""
    serve(kubectl, port)
    eventually(lambda: kubectl.get("service", "chat")["spec"]["ports"][0]["port"] == port, seconds)
    eventually(lambda: condition(kubectl.get("isvc", "chat"))["reason"] == "Stopped", seconds)


def versions(kubectl: Kubectl) -> list[str]:
    kinds = "deployments,services,controllerrevisions,inferenceservices.octavo.dev"
    return [one["metadata"]["resourceVersion"] for one in kubectl.get(kinds)]


def services_written(process: OperatorProcess) -> float:
    return process.metrics()['octavo_operator_writes_total{kind="Service"}']


def applied(process: OperatorProcess) -> int:
    return process.log.read_text().count("applied ")


def test_killed_leader_is_followed_within_the_lease(
    kubectl: Kubectl, pair: tuple[OperatorProcess, OperatorProcess]
) -> None:
    leader, other = pair
    assert other.writes() == 0
    before = versions(kubectl)
    leader.stop(signal.SIGKILL)
    began = time.monotonic()
    eventually(lambda: leads(other), TAKEOVER)
    took = time.monotonic() - began
    eventually(other.has_looked)
    assert other.writes() == 0
    assert versions(kubectl) == before
    followed(kubectl, 81)
    assert services_written(other) == 1
    print(f"takeover after {took:.1f} s")


def test_killed_leader_leaves_no_edit_behind(kubectl: Kubectl, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    leader, _ = pair
    leader.stop(signal.SIGKILL)
    followed(kubectl, 81, TAKEOVER)


def test_frozen_leader_that_thaws_ends_and_writes_nothing(
    kubectl: Kubectl, pair: tuple[OperatorProcess, OperatorProcess]
) -> None:
    leader, other = pair
    wrote = applied(leader)
    leader.send(signal.SIGSTOP)
    followed(kubectl, 81, TAKEOVER)
    assert leads(other)
    # What it will find when it wakes up: news in its sockets, and a child to repair.
    kubectl("annotate", "isvc", "chat", "a=b")
    before = versions(kubectl)
    leader.send(signal.SIGCONT)
    assert leader.process is not None
    assert leader.process.wait(10) == 1
    assert "stops: Lease" in leader.log.read_text()
    assert applied(leader) == wrote
    assert versions(kubectl) == before
    assert leads(other)


def test_stopped_leader_hands_over_at_once(kubectl: Kubectl, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    leader, other = pair
    began = time.monotonic()
    assert leader.stop() == 0
    assert time.monotonic() - began < 2.0
    eventually(lambda: leads(other), HANDOVER)
    print(f"handover after {time.monotonic() - began:.1f} s")
    followed(kubectl, 81)
    assert "gave Lease" in leader.log.read_text()


def test_short_outage_deposes_nobody(world: World, kubectl: Kubectl, proxy: FaultyProxy) -> None:
    process = world.operator(f"--lease={world.home}/{world.home}", server=proxy.url)
    process.start()
    try:
        followed(kubectl, 80)
        proxy.down = True
        proxy.cut_watches()
        time.sleep(5)
        proxy.down = False
        followed(kubectl, 81)
        assert leads(process)
    finally:
        assert process.stop() == 0


def test_long_outage_ends_the_leader_and_loses_nothing(world: World, kubectl: Kubectl, proxy: FaultyProxy) -> None:
    process = world.operator(f"--lease={world.home}/{world.home}", server=proxy.url)
    process.start()
    try:
        followed(kubectl, 80)
        proxy.down = True
        proxy.cut_watches()
        serve(kubectl, 81)
        assert process.process is not None
        assert process.process.wait(20) == 1
        assert "could not be renewed within 10 s" in process.log.read_text()
        proxy.down = False
        process.start()
        followed(kubectl, 81, TAKEOVER)
    finally:
        process.stop()


def test_lease_that_may_not_be_read_is_no_readiness(world: World) -> None:
    process = world.operator(f"--lease={world.home}/another")
    process.start(wait=False)
    try:
        eventually(lambda: "cannot get resource" in process.log.read_text(), 30)
        assert not process.is_ready()
    finally:
        process.stop()


def test_second_operator_without_a_lease_is_told_and_not_fought_for_ever(world: World, kubectl: Kubectl) -> None:
    """Both lead over the same objects, with other default images: each has its own idea of UpdatePending."""
    one, other = world.operator(), world.operator("--runtime-image=ANOTHER-IMAGE")
    one.start()
    try:
        followed(kubectl, 80)
        other.start()
        (told,) = eventually(lambda: kubectl.get("events", "--field-selector=reason=Contested"), 30)
        assert "perhaps a second operator serves this namespace" in told["message"]
        assert other.stop() == 0
        # Within the minute that the one was patient for, and a quarter more.
        eventually(lambda: condition(kubectl.get("isvc", "chat"), "UpdatePending")["reason"] == "UpToDate", 90)
    finally:
        for process in (one, other):
            if process.process is not None and process.process.poll() is None:
                process.stop()
