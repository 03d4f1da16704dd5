"""Command line: `PYTHONPATH=e2e python3 -m cluster COMMAND`."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from cluster import images, lifecycle, models, namespaces, registries
from cluster.errors import ClusterError
from cluster.layout import DEFAULT_STATE, Layout
from cluster.progress import Progress

_EPILOG = """\
A cluster belongs to its state directory: names and addresses follow from the directory's path, so that several
clusters live side by side on one machine. See docs/cluster.md.
"""


def main() -> None:
    """Parse the command line and run one command."""
    options = _parser().parse_args()
    layout = Layout.of(options.state)
    try:
        options.run(layout, options, Progress())
    except ClusterError as error:
        sys.exit(f"cluster: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m cluster", description="A real one-node Kubernetes, from pinned sources.", epilog=_EPILOG
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--state", type=Path, default=DEFAULT_STATE, metavar="DIR", help=f"state directory (default: {DEFAULT_STATE})"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    up = commands.add_parser("up", parents=[shared], help="make a healthy cluster run; quick when there is one")
    up.add_argument("--gpus", type=_count, metavar="N", help="also give the node N fake GPUs (nvidia.com/gpu)")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", parents=[shared], help="remove the cluster; keeps the images loaded into it")
    down.add_argument("--purge", action="store_true", help="remove those images and the state directory too")
    down.set_defaults(run=_down)

    status = commands.add_parser("status", parents=[shared], help="say whether it is healthy, and where things are")
    status.set_defaults(run=_status)

    kubeconfig = commands.add_parser("kubeconfig", parents=[shared], help="print the path of the kubeconfig")
    kubeconfig.set_defaults(run=_kubeconfig)

    logs = commands.add_parser("logs", parents=[shared], help="print the log of a component")
    logs.add_argument("component", nargs="?", help="kubelet, kube-apiserver, …; without it, the list of them")
    logs.add_argument("--lines", type=_count, default=200, metavar="N", help="only the last N lines (default: 200)")
    logs.set_defaults(run=_logs)

    kubectl = commands.add_parser("kubectl", parents=[shared], help="run kubectl against this cluster")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER, metavar="…")
    kubectl.set_defaults(run=_kubectl)

    gpus = commands.add_parser("gpus", parents=[shared], help="give the node N fake GPUs (nvidia.com/gpu)")
    gpus.add_argument("count", type=_count, metavar="N")
    gpus.set_defaults(run=_gpus)

    build = commands.add_parser(
        "images",
        parents=[shared],
        help="build the images and load them into the node (or push them); prints their names as JSON",
    )
    build.add_argument("--registry", metavar="R", help="push there, instead of loading into the node")
    build.add_argument("--base", metavar="IMAGE", help="base image (default: bootstrapped from Debian packages)")
    build.set_defaults(run=_images)

    load = commands.add_parser("load", parents=[shared], help="bring an image from the build cache into the node")
    load.add_argument("image")
    load.set_defaults(run=_load)

    push = commands.add_parser("push", help="push an image from the build cache; prints its name there")
    push.add_argument("image")
    push.add_argument("registry", metavar="R", help="such as registry.example.com/you")
    push.set_defaults(run=_push, state=DEFAULT_STATE)

    model = commands.add_parser("model", help="give pods a model from the host")
    publish = model.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "publish", parents=[shared], help="make a folder appear as /NAME of a bound, read-only claim"
    )
    publish.add_argument("folder", type=Path, metavar="DIR")
    publish.add_argument("--name", metavar="NAME", help="the model's folder on the volume (default: DIR's own name)")
    publish.add_argument("--claim", default="models", help="the PersistentVolumeClaim (default: models)")
    publish.add_argument("--namespace", action="append", help="its namespace; may be repeated (default: default)")
    publish.set_defaults(run=_publish)
    return parser


def _up(layout: Layout, options: argparse.Namespace, progress: Progress) -> None:
    lifecycle.up(layout, options.gpus, progress)


def _down(layout: Layout, options: argparse.Namespace, progress: Progress) -> None:
    lifecycle.down(layout, purge=options.purge, progress=progress)


def _status(layout: Layout, _: argparse.Namespace, __: Progress) -> None:
    trouble = lifecycle.unhealthy(layout)
    print(f"state       {layout.state}")
    print(f"health      {'healthy' if trouble is None else f'not usable, because {trouble}'}")
    print(f"API server  {layout.api_url}")
    print(f"kubeconfig  {layout.kubeconfig}")
    print(f"commands    {layout.state / 'bin'} (kubectl, helm)")
    print(f"logs        {layout.logs}")
    print(f"addresses   node {layout.node_ip}, host {layout.host_ip}, pods {layout.pods}, services {layout.services}")
    print(f"processes   {len(namespaces.processes(layout))} in the cgroup {layout.name}")
    if trouble is not None:
        sys.exit(1)


def _kubeconfig(layout: Layout, _: argparse.Namespace, __: Progress) -> None:
    print(layout.kubeconfig)


def _logs(layout: Layout, options: argparse.Namespace, _: Progress) -> None:
    known = sorted(path.stem for path in layout.logs.glob("*.log"))
    if options.component is None:
        print("\n".join(known))
        return
    if options.component not in known:
        raise ClusterError(f"no log of {options.component!r} in {layout.logs}; there are: {', '.join(known) or 'none'}")
    lines = (layout.logs / f"{options.component}.log").read_text(errors="replace").splitlines()
    print("\n".join(lines[-options.lines :]))


def _kubectl(layout: Layout, options: argparse.Namespace, _: Progress) -> NoReturn:
    command = layout.state / "bin" / "kubectl"
    if not command.exists():
        raise ClusterError(f"no cluster is running for {layout.state}; start one with `up`")
    environment = {**os.environ, "KUBECONFIG": str(layout.kubeconfig)}
    os.execve(command, ["kubectl", *options.arguments], environment)  # noqa: S606 - becoming kubectl is the point


def _gpus(layout: Layout, options: argparse.Namespace, _: Progress) -> None:
    _require_running(layout)
    lifecycle.set_gpus(layout, options.count)


def _images(layout: Layout, options: argparse.Namespace, progress: Progress) -> None:
    if options.registry is None:
        _require_running(layout)
    references = images.build(options.base, options.registry, progress)
    if options.registry is None:
        images.refresh(layout, references, progress)
    layout.state.mkdir(parents=True, exist_ok=True)
    (layout.state / "images.json").write_text(json.dumps(references, indent=1) + "\n")
    print(json.dumps(references))


def _load(layout: Layout, options: argparse.Namespace, progress: Progress) -> None:
    _require_running(layout)
    images.load(layout, options.image, progress)


def _push(_: Layout, options: argparse.Namespace, progress: Progress) -> None:
    print(registries.push(options.image, options.registry, progress))


def _publish(layout: Layout, options: argparse.Namespace, progress: Progress) -> None:
    _require_running(layout)
    name = options.name or options.folder.resolve().name
    for namespace in options.namespace or ["default"]:
        with progress.stage(f"publishing {name} on the claim {namespace}/{options.claim}"):
            models.publish(layout, options.folder, name, options.claim, namespace)


def _require_running(layout: Layout) -> None:
    trouble = lifecycle.unhealthy(layout)
    if trouble is not None:
        raise ClusterError(f"the cluster of {layout.state} is not usable, because {trouble}; start it with `up`")


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


if __name__ == "__main__":
    main()
