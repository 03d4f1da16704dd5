"""Bringing the cluster up, looking at it, and taking it down."""

import fcntl
import hashlib
import http.client
import json
import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import binaries, config, namespaces, node, oci, pki, system
from cluster.api import Api, NotFoundError
from cluster.errors import ClusterError
from cluster.layout import NODE, Layout
from cluster.progress import Progress

GPU = "nvidia.com/gpu"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_STATE_GIB = 1.0
_DEADLINE_S = 120.0
_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


def up(layout: Layout, gpus: int | None, progress: Progress) -> None:
    """Make a healthy cluster run, whatever is there now.

    Args:
        layout: the cluster.
        gpus: number of fake GPUs of the node; None leaves them as they are.
        progress: told about each stage.

    Raises:
        ClusterError: with the failed component and the tail of its log.
    """
    system.check_root()
    _check_state_path(layout)
    system.check_disk(layout.state, _STATE_GIB, "a cluster's state")
    system.install(system.NODE_PACKAGES, progress)
    programs = binaries.ensure(progress)
    with _lock(layout):
        plan = _plan(layout, programs)
        trouble = unhealthy(layout, plan.fingerprint)
        if trouble is None:
            progress.note(f"already running: export KUBECONFIG={layout.kubeconfig}")
        else:
            if namespaces.processes(layout):
                progress.note(f"starting afresh, because {trouble}")
            _clear(layout)
            _start(layout, plan, progress)
        if gpus is not None:
            set_gpus(layout, gpus)


def control_plane(layout: Layout, progress: Progress) -> None:
    """Start a control plane afresh, without a node: kwok plays those that are created, and their pods.

    `down` takes it away; so does the next start, whatever is left of an earlier one.

    Raises:
        ClusterError: with the failed component and the tail of its log.
    """
    system.check_root()
    _check_state_path(layout)
    system.check_disk(layout.state, _STATE_GIB, "a cluster's state")
    system.install(system.NODE_PACKAGES, progress)
    programs = binaries.ensure(progress, (*binaries.PROGRAMS, binaries.KWOK))
    with _lock(layout), progress.stage("control plane"):
        _clear(layout)
        try:
            _write_state(layout, _plan(layout, programs))
            (layout.state / "bin" / "kwok").symlink_to(programs["kwok"])
            namespaces.start(layout, "control-plane")
            api = Api(layout, timeout_s=3.0)
            _wait_for(api.ready, layout, "the API server", "kube-apiserver")
            _wait_for(lambda: _exists(api, _ACCOUNT), layout, "the service account", "kube-controller-manager")
        except BaseException:
            namespaces.stop(layout)
            raise


def down(layout: Layout, *, purge: bool, progress: Progress) -> None:
    """Remove the cluster, whatever is left of it. Keeps the node's images unless `purge`."""
    system.check_root()
    with _lock(layout), progress.stage(f"taking down {layout.name}"):
        _clear(layout)
        if purge:
            shutil.rmtree(layout.images, ignore_errors=True)
    if purge:
        shutil.rmtree(layout.state, ignore_errors=True)


def unhealthy(layout: Layout, fingerprint: str | None = None) -> str | None:
    """Why the cluster is not usable, as the end of a sentence with "because"; None when it is.

    Args:
        layout: the cluster.
        fingerprint: when given, a cluster of another configuration is not usable either.
    """
    if namespaces.init_pid(layout) is None:
        return "it is not running"
    started_with = _read(layout.state / "fingerprint")
    if started_with is None:
        return "its start was not finished"
    if fingerprint not in {None, started_with}:
        return "its configuration or programs have changed"
    stopped = namespaces.stopped_component(layout)
    if stopped is not None:
        return f"{stopped} is stopped (SIGSTOP)"
    api = Api(layout, timeout_s=3.0)
    if not api.ready():
        return "the API server is not ready"
    if not _node_ready(api):
        return "the node is not ready"
    if not _dns_ready(layout):
        return "DNS does not answer"
    return None


def set_gpus(layout: Layout, count: int) -> None:
    """Give the node `count` GPUs that do not exist, for tests of scheduling."""
    api = Api(layout)
    path = f"/api/v1/nodes/{NODE}/status"
    fields = [f"/status/{part}/{GPU.replace('/', '~1')}" for part in ("capacity", "allocatable")]
    capacity = api.get(f"/api/v1/nodes/{NODE}")["status"]["capacity"]
    if count > 0:
        api.call("PATCH", path, [{"op": "add", "path": field, "value": str(count)} for field in fields])
    elif GPU in capacity:
        api.call("PATCH", path, [{"op": "remove", "path": field} for field in fields])
    _wait_for(lambda: _allocatable(api) == count, layout, f"{count} {GPU} to become allocatable")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a start needs, settled before anything is touched."""

    files: dict[str, str]
    programs: dict[str, Path]
    pause_image: str
    fingerprint: str


def _plan(layout: Layout, programs: dict[str, Path]) -> _Plan:
    pause_image = f"localhost/octavo-pause:{programs['pause'].name.rpartition('-')[2]}"
    files = config.files(layout, pause_image)
    commands = [component.argv for component in config.components(layout)]
    sources = sorted(Path(__file__).parent.glob("*.py"))
    settled = json.dumps([files, commands, {name: str(path) for name, path in programs.items()}])
    init = b"".join(source.read_bytes() for source in sources if source.name in {"init.py", "pki.py", "config.py"})
    return _Plan(files, programs, pause_image, hashlib.sha256(settled.encode() + init).hexdigest())


def _start(layout: Layout, plan: _Plan, progress: Progress) -> None:
    try:
        with progress.stage("certificates and configuration"):
            _write_state(layout, plan)
        with progress.stage("namespaces"):
            namespaces.start(layout, "node")
        api = Api(layout, timeout_s=3.0)
        with progress.stage("API server"):
            _wait_for(api.ready, layout, "the API server", "kube-apiserver")
        with progress.stage("base objects and pause image"):
            for manifest in config.base_objects(layout):
                api.apply(manifest)
            _import_pause(layout, plan)
        with progress.stage("node Ready"):
            _wait_for(lambda: _node_ready(api), layout, "the node to become Ready", "kubelet")
        with progress.stage("DNS and service network"):
            _wait_for(lambda: _dns_ready(layout), layout, "CoreDNS", "coredns")
            _wait_for(lambda: _service_answers(layout), layout, "the kube-dns Service to answer", "kube-proxy")
        with progress.stage("default service account"):
            _wait_for(lambda: _exists(api, _ACCOUNT), layout, "the service account", "kube-controller-manager")
    except BaseException:
        namespaces.stop(layout)
        raise
    (layout.state / "fingerprint").write_text(plan.fingerprint)
    progress.note(f"ready: export KUBECONFIG={layout.kubeconfig}")


def _write_state(layout: Layout, plan: _Plan) -> None:
    state = layout.state
    for folder in ("bin", "cni", "containerd", "kubelet", "log", "pod-logs", "registries", "volume-plugins"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    for command in binaries.KUBERNETES_COMMANDS:
        (state / "bin" / command).symlink_to(plan.programs["kubernetes"])
    for name in ("coredns", "helm"):
        (state / "bin" / name).symlink_to(plan.programs[name])
    for path, content in plan.files.items():
        (state / path).write_text(content)
    pki.create(layout)


def _import_pause(layout: Layout, plan: _Plan) -> None:
    _wait_for(lambda: _containerd_answers(layout), layout, "containerd", "containerd")
    if plan.pause_image in node.image_names(layout):
        return
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    pause = plan.programs["pause"].read_bytes()
    node.import_archive(layout, oci.single_file_image(plan.pause_image, "/pause", pause, architecture))


def _clear(layout: Layout) -> None:
    """Stop what runs and delete the state, except images and lock."""
    namespaces.stop(layout)
    mounts = namespaces.mounts_below(layout.state)
    if mounts:
        raise ClusterError(f"something is mounted below {layout.state}, unmount it first: {', '.join(mounts)}")
    for entry in layout.state.iterdir():
        if entry == layout.images or entry.name == "lock":
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _wait_for(condition: Callable[[], bool], layout: Layout, what: str, component: str = "") -> None:
    """Wait until the condition holds; fail at once when the node's processes are gone."""
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if namespaces.init_pid(layout) is None:
            raise ClusterError(post_mortem(layout))
        if time.monotonic() > deadline:
            log = namespaces.tail(layout.logs / f"{component}.log") if component else ""
            raise ClusterError(f"waited {_DEADLINE_S:.0f} s in vain for {what}; the end of {component}'s log:\n{log}")
        time.sleep(0.05)


def post_mortem(layout: Layout) -> str:
    """Why the node ended: the component that it died of and the end of its log."""
    failed = _read(layout.state / "failed.json")
    if failed is None:
        return f"the node's first process ended:\n{namespaces.tail(layout.logs / 'init.log')}"
    cause = json.loads(failed)
    log = namespaces.tail(layout.logs / f"{cause['component']}.log")
    return f"{cause['component']} {cause['reason']}; the end of its log:\n{log}"


def _check_state_path(layout: Layout) -> None:
    if Path("/run") in layout.state.parents or Path("/var/log") in layout.state.parents:
        raise ClusterError(f"the state directory {layout.state} must not be below /run or /var/log")


def _node_ready(api: Api) -> bool:
    try:
        status = api.get(f"/api/v1/nodes/{NODE}")["status"]
    except (OSError, http.client.HTTPException, NotFoundError):
        return False
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    return conditions.get("Ready") == "True"


def _allocatable(api: Api) -> int:
    return int(api.get(f"/api/v1/nodes/{NODE}")["status"]["allocatable"].get(GPU, "0"))


def _exists(api: Api, path: str) -> bool:
    try:
        api.get(path)
    except NotFoundError:
        return False
    return True


def _dns_ready(layout: Layout) -> bool:
    """CoreDNS has read the API and answers."""
    connection = http.client.HTTPConnection(str(layout.node_ip), 8181, timeout=2.0)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _service_answers(layout: Layout) -> bool:
    """A ClusterIP leads somewhere: kube-proxy has written its rules."""
    try:
        socket.create_connection((str(layout.dns_service_ip), 53), timeout=0.5).close()
    except OSError:
        return False
    return True


def _containerd_answers(layout: Layout) -> bool:
    try:
        node.ctr(layout, "version")
    except ClusterError:
        return False
    return True


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


@contextmanager
def _lock(layout: Layout) -> Iterator[None]:
    """One command at a time changes a cluster."""
    layout.state.mkdir(parents=True, exist_ok=True)
    with (layout.state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
