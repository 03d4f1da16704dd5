"""What all stories share: the running cluster, a namespace of one's own, and the images."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cluster import images, lifecycle
from cluster.layout import DEFAULT_STATE, Layout
from cluster.progress import Progress
from demo_harness import ISVC, Demo, run_demo
from operator_harness import Kubectl, OperatorProcess, World, operator_world


@pytest.fixture(scope="session")
def cluster() -> Layout:
    """The cluster of this checkout: the one that runs, or a new one. It is left running, for the next time."""
    layout = Layout.of(DEFAULT_STATE)
    lifecycle.up(layout, None, Progress())
    return layout


@pytest.fixture(scope="session")
def image_references(cluster: Layout) -> dict[str, str]:
    """References of the images `operator` and `runtime`, built from this checkout and loaded into the node."""
    progress = Progress()
    references = images.build(None, None, progress)
    images.refresh(cluster, references, progress)
    return references


@pytest.fixture
def kubectl(cluster: Layout) -> Iterator[Kubectl]:
    """kubectl in a namespace that goes with the test."""
    admin = Kubectl(cluster.state / "bin" / "kubectl", cluster.kubeconfig)
    name = f"story-{uuid.uuid4().hex[:8]}"
    admin("create", "namespace", name)
    yield admin.within(name)
    admin("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def demo(cluster: Layout) -> Iterator[Demo]:
    """The demo's service; where none was before, none is left."""
    path = cluster.state / "bin"
    kubectl = Kubectl(path / "kubectl", cluster.kubeconfig)
    was_there = kubectl.run("get", ISVC, "smollm2").returncode == 0
    output = run_demo(path=path)
    yield Demo(kubectl, output, path)
    if not was_there:
        kubectl("delete", ISVC, "smollm2")


@pytest.fixture(scope="module")
def world(cluster: Layout) -> Iterator[World]:
    """The cluster prepared for operators that run as processes of this machine."""
    commands = cluster.state / "bin"
    with operator_world(commands / "kubectl", commands / "helm", cluster.kubeconfig) as prepared:
        yield prepared


@pytest.fixture(scope="module")
def operator(world: World) -> Iterator[OperatorProcess]:
    """An operator that serves a whole file of stories; a file that disturbs it has one of its own for each."""
    process = world.operator()
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def own_operator(world: World) -> Iterator[OperatorProcess]:
    """An operator of one story alone, which may stop, kill and start it; it ends with it, whatever life it is in."""
    process = world.operator()
    process.start()
    yield process
    process.stop()
