"""The cluster itself: it comes up once, stays apart from others, and leaves nothing behind."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import images, lifecycle, models, namespaces, node
from cluster.layout import REPOSITORY, Layout
from cluster.progress import Progress
from operator_harness import Kubectl, eventually, fetch

pytestmark = pytest.mark.cluster


def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The tool as a user calls it."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "e2e")}
    command = [sys.executable, "-m", "cluster", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def traces() -> dict[str, Any]:
    """Everything of this machine that a cluster could leave behind."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def folders(*patterns: str) -> set[str]:
        return {str(path) for pattern in patterns for path in Path("/").glob(pattern)}

    sysctls = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    return {
        "links": {link["ifname"] for link in json.loads("".join(lines("ip", "-json", "link")))},
        "routes": sorted(lines("ip", "route", "show", "table", "all")),
        "rules": lines("nft", "list", "ruleset"),
        "mounts": sorted(line.split(" ", 3)[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "sysctls": {name: Path("/proc/sys", name).read_text() for name in sysctls},
        "cgroups": folders("sys/fs/cgroup/octavo-*", "sys/fs/cgroup/*/octavo-*"),
        "folders": folders("var/lib/*", "var/log/*", "run/*", "etc/cni/*", "opt/*"),
    }


def pod(name: str, image: str, *command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": list(command)}
    container |= spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [container], **spec},
    }


def pause_image(layout: Layout) -> str:
    return next(name for name in node.image_names(layout) if name.startswith("localhost/octavo-pause:"))


def finished(kubectl: Kubectl, name: str) -> str:
    """The log of a pod that succeeds."""
    phase = eventually(lambda: kubectl.get("pod", name)["status"]["phase"] in {"Succeeded", "Failed"}, 60)
    assert phase
    log = kubectl("logs", name)
    assert kubectl.get("pod", name)["status"]["phase"] == "Succeeded", log
    return log


@pytest.fixture
def second(cluster: Layout, tmp_path: Path) -> Iterator[Layout]:
    """Another cluster beside the first."""
    layout = Layout.of(tmp_path / "second")
    lifecycle.up(layout, None, Progress())
    yield layout
    lifecycle.down(layout, purge=True, progress=Progress())
    assert lifecycle.unhealthy(cluster) is None


def test_up_of_a_running_cluster_keeps_it_and_is_quick(cluster: Layout) -> None:
    before = namespaces.init_pid(cluster)
    started = time.monotonic()
    done = tool("up")
    took = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    assert namespaces.init_pid(cluster) == before
    assert took < 2.0


def test_down_is_safe_when_nothing_is_up(tmp_path: Path) -> None:
    done = tool("down", "--purge", "--state", str(tmp_path / "never"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "never").exists()


def kill_first_process(layout: Layout) -> None:
    pid = namespaces.init_pid(layout)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def kill_everything_else(layout: Layout) -> None:
    first = namespaces.init_pid(layout)
    for pid in namespaces.component_pids(layout):
        if pid != first and f"{layout.state}" not in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(pid, signal.SIGKILL)


def stop_everything(layout: Layout) -> None:
    for pid in namespaces.processes(layout):
        os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize("violence", [kill_first_process, kill_everything_else, stop_everything])
def test_down_leaves_nothing_whatever_was_killed(
    cluster: Layout, tmp_path: Path, violence: Callable[[Layout], None]
) -> None:
    before = traces()
    layout = Layout.of(tmp_path / "doomed")
    lifecycle.up(layout, None, Progress())
    kubectl = Kubectl(layout.state / "bin" / "kubectl", layout.kubeconfig)
    kubectl.apply(pod("idle", pause_image(layout), "/pause"))
    eventually(lambda: kubectl.get("pod", "idle")["status"]["phase"] == "Running", 30)
    assert traces() != before
    violence(layout)
    done = tool("down", "--purge", "--state", str(layout.state))
    assert done.returncode == 0, done.stderr
    assert traces() == before
    assert not layout.state.exists()
    assert lifecycle.unhealthy(cluster) is None


def test_up_replaces_a_cluster_that_lost_a_component(second: Layout) -> None:
    scheduler = next(
        pid for pid in namespaces.component_pids(second) if "kube-scheduler" in Path(f"/proc/{pid}/cmdline").read_text()
    )
    os.kill(scheduler, signal.SIGKILL)
    eventually(lambda: namespaces.init_pid(second) is None)
    assert "kube-scheduler was killed by signal 9" in lifecycle.post_mortem(second)
    done = tool("up", "--state", str(second.state))
    assert done.returncode == 0, done.stderr
    assert lifecycle.unhealthy(second) is None


def test_a_stopped_component_is_named_and_may_go_on(second: Layout) -> None:
    kubelet = next(
        pid for pid in namespaces.component_pids(second) if "kubelet" in Path(f"/proc/{pid}/comm").read_text()
    )
    os.kill(kubelet, signal.SIGSTOP)
    assert eventually(lambda: lifecycle.unhealthy(second)) == "kubelet is stopped (SIGSTOP)"
    os.kill(kubelet, signal.SIGCONT)
    assert eventually(lambda: lifecycle.unhealthy(second) is None)


def test_two_clusters_run_side_by_side(cluster: Layout, second: Layout) -> None:
    for layout in (cluster, second):
        assert lifecycle.unhealthy(layout) is None
    one, other = (Kubectl(c.state / "bin" / "kubectl", c.kubeconfig) for c in (cluster, second))
    other.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "only-in-second"}})
    assert one.run("get", "configmap", "only-in-second").returncode != 0


def test_host_and_pods_reach_a_service(cluster: Layout, kubectl: Kubectl, image_references: dict[str, str]) -> None:
    image = image_references["operator"]
    command = ("python", "-m", "http.server", "8000", "--directory", "/opt/octavo/bin")
    kubectl.apply(
        pod("web", image, *command),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    )
    kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    pod_ip = kubectl.get("pod", "web")["status"]["podIP"]
    service_ip = kubectl.get("service", "web")["spec"]["clusterIP"]
    for address in (f"{pod_ip}:8000", service_ip):
        url = f"http://{address}/"
        status, page = eventually(functools.partial(fetch, url))
        assert status == 200
        assert "octavo-operator" in page
    program = "import urllib.request as u; print(u.urlopen('http://web.{}.svc.cluster.local/').status)"
    kubectl.apply(pod("client", image, "python", "-c", program.format(kubectl.namespace)))
    assert finished(kubectl, "client") == "200"
    kubectl.apply(
        pod(
            "outsider",
            image,
            "python",
            "-c",
            f"import socket; socket.create_connection(('{cluster.node_ip}', 6443), 5)",
        )
    )
    finished(kubectl, "outsider")


def test_load_brings_only_the_changed_layer(
    cluster: Layout, kubectl: Kubectl, image_references: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY message /message\n")
    for version in ("one", "two"):
        (tmp_path / "message").write_text(version)
        reference = f"localhost/octavo-story-{version}:{kubectl.namespace}"
        images.build_image(tmp_path / "Containerfile", tmp_path, reference, image_references["operator"])
        layers = len(node.ctr(cluster, "snapshots", "list").splitlines())
        started = time.monotonic()
        images.load(cluster, reference, Progress())
        assert time.monotonic() - started < 5.0
        assert len(node.ctr(cluster, "snapshots", "list").splitlines()) <= layers + 1
        kubectl.apply(pod(version, reference, "cat", "/message", "/opt/octavo/bin/octavo-operator"))
        log = finished(kubectl, version)
        assert log.startswith(version)
        assert "octavo_operator" in log
        kubectl("delete", "pod", version)
        node.forget_unused(cluster, reference.rpartition(":")[0], current="")
        images.forget(reference)


def test_third_pod_waits_for_a_gpu_that_is_free(second: Layout) -> None:
    lifecycle.set_gpus(second, 2)
    kubectl = Kubectl(second.state / "bin" / "kubectl", second.kubeconfig)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    for number in range(3):
        kubectl.apply(pod(f"gpu-{number}", pause_image(second), "/pause", container=limits))

    def states() -> list[tuple[str, str]]:
        found = [item["status"] for item in kubectl.get("pods")]
        return sorted(
            (s["phase"], s["conditions"][-1].get("message", "") if s["phase"] == "Pending" else "") for s in found
        )

    eventually(lambda: [phase for phase, _ in states()] == ["Pending", "Running", "Running"], 30)
    waiting = next(item for item in kubectl.get("pods") if item["status"]["phase"] == "Pending")
    reason = next(c for c in waiting["status"]["conditions"] if c["type"] == "PodScheduled")
    assert reason["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in reason["message"]
    lifecycle.set_gpus(second, 3)
    eventually(lambda: [phase for phase, _ in states()] == ["Running"] * 3, 30)


def test_published_model_is_read_only_in_several_namespaces(
    cluster: Layout, kubectl: Kubectl, image_references: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "story"}')
    tmp_path.chmod(0o755)
    claim = f"models-{kubectl.namespace}"
    mount = {
        "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": claim}}],
        "container": {"volumeMounts": [{"name": "models", "mountPath": "/models"}]},
    }
    script = "cat /models/Tiny/config.json; touch /models/Tiny/x 2>&1 || true"
    for namespace in (kubectl.namespace, f"{kubectl.namespace}-more"):
        models.publish(cluster, tmp_path, "Tiny", claim, namespace)
        inside = kubectl.within(namespace)
        inside.apply(pod("reader", image_references["operator"], "sh", "-c", script, **json.loads(json.dumps(mount))))
        log = finished(inside, "reader")
        assert '"model_type": "story"' in log
        assert "Read-only file system" in log
    kubectl("delete", "namespace", f"{kubectl.namespace}-more", "--wait=false")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("load", "localhost/never:1"), "there is no image localhost/never:1"),
        (("model", "publish", "/nowhere"), "/nowhere is no folder"),
        (("logs", "kube-nothing"), "there are: containerd"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_tool_says_what_is_wrong(arguments: tuple[str, ...], says: str) -> None:
    done = tool(*arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
