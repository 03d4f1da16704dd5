"""A real registry for the stories: Debian's docker-registry, with TLS, an authority of its own, and one user."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import system
from cluster.layout import INSIDE, Layout
from cluster.progress import Progress
from cluster.waiting import wait
from operator_harness import free_port

USER = "octavo"
PASSWORD = "story"  # noqa: S105 of a registry that lives for one story
_HTPASSWD = (
    f"{USER}:$2y$04$7hG0Zq1vXo3Rk5TnYwB2ceCMK1dDh6sGMfSSwMN13szVQ21CT1IZO\n"  # bcrypt, the only form that it takes
)

_REQUEST = re.compile(
    r'"(?P<method>[A-Z]+) (?P<path>\S+) HTTP/[^"]*" (?P<status>\d+) (?P<size>\d+) "[^"]*" "(?P<agent>[^"]*)"'
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request that the registry has answered, with the size of the answer in bytes."""

    method: str
    path: str
    status: int
    size: int
    agent: str

    @property
    def sends_content(self) -> bool:
        """Whether it brought a part of a layer or of a configuration. A manifest is not meant."""
        return self.method in {"PATCH", "PUT"} and "/blobs/uploads/" in self.path


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry at work.

    Attributes:
        host: its address and port, the first part of its images' names.
        folder: everything that it has, the images included.
    """

    host: str
    folder: Path

    @property
    def authority(self) -> Path:
        """The certificate to trust."""
        return self.folder / "ca.crt"

    def requests(self) -> list[Request]:
        """What it was asked so far."""
        found = _REQUEST.finditer((self.folder / "access.log").read_text())
        return [Request(m["method"], m["path"], int(m["status"]), int(m["size"]), m["agent"]) for m in found]

    def log_in(self) -> Path:
        """Logs in as a user does; the file of credentials."""
        credentials = self.folder / "auth.json"
        subprocess.run(
            [
                *("buildah", "login", f"--authfile={credentials}", f"--cert-dir={self.folder / 'certs'}"),
                *(f"--username={USER}", "--password-stdin", self.host),
            ],
            input=PASSWORD,
            text=True,
            check=True,
            capture_output=True,
        )
        return credentials

    def trusted_by(self, *command: str) -> list[str]:
        """The command on a machine whose /etc/containers/certs.d has the authority; this machine stays as it is."""
        steps = (
            'mkdir -p "$0" && cp -a /etc/containers/. "$0" && mkdir -p "$0/certs.d/$1" && cp "$2" "$0/certs.d/$1/ca.crt" '
            '&& mount --bind "$0" /etc/containers && shift 2 && exec "$@"'
        )
        own = str(self.folder / "etc-containers")
        private = ("unshare", "--mount", "--propagation=private")
        return [*private, "sh", "-c", steps, own, self.host, str(self.authority), *command]

    def let_pull(self, layout: Layout) -> None:
        """Makes a node's containerd trust it, as an administrator does."""
        folder = layout.state / "registries" / self.host
        folder.mkdir(parents=True)
        (folder / "ca.crt").write_bytes(self.authority.read_bytes())
        url = f"https://{self.host}"
        authority = f'ca = "{INSIDE / "registries" / self.host / "ca.crt"}"\n'
        # Said twice: for the host, and for the server that containerd asks again when the host has no such image.
        (folder / "hosts.toml").write_text(f'server = "{url}"\n{authority}[host."{url}"]\n{authority}')


@contextmanager
def running_registry(folder: Path, address: str) -> Iterator[Registry]:
    """Runs a registry. It ends with this process, however that ends.

    Args:
        folder: for everything that it has; made here.
        address: an address of this machine.
    """
    system.install(system.REGISTRY_PACKAGES, Progress())
    folder.mkdir()
    registry = Registry(f"{address}:{free_port(address)}", folder)
    _certify(registry, address)
    (folder / "htpasswd").write_text(_HTPASSWD)
    configuration = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "auth": {"htpasswd": {"realm": "octavo", "path": str(folder / "htpasswd")}},
        "http": {
            "addr": registry.host,
            "tls": {"certificate": str(registry.authority), "key": str(folder / "registry.key")},
        },
    }
    (folder / "config.yml").write_text(json.dumps(configuration))
    command = ["setpriv", "--pdeathsig=KILL", "docker-registry", "serve", str(folder / "config.yml")]
    with (folder / "access.log").open("wb") as access, (folder / "error.log").open("wb") as errors:
        process = subprocess.Popen(command, stdout=access, stderr=errors)
    try:
        assert wait(lambda: _listens(registry), 10.0), (folder / "error.log").read_text()
        yield registry
    finally:
        process.terminate()
        process.wait(10)


def _certify(registry: Registry, address: str) -> None:
    """A certificate that is its own authority, for an address."""
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ),
            *("-subj", "/CN=octavo-story", "-addext", f"subjectAltName=IP:{address}"),
            *("-keyout", str(registry.folder / "registry.key"), "-out", str(registry.authority)),
        ],
        check=True,
        capture_output=True,
    )
    (registry.folder / "certs").mkdir()
    (registry.folder / "certs" / "ca.crt").symlink_to(registry.authority)


def _listens(registry: Registry) -> bool:
    address, _, port = registry.host.partition(":")
    try:
        socket.create_connection((address, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True
