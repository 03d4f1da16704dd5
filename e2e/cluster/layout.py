"""Where a cluster lives: every name, address and path follows from the state directory.

Two clusters on one machine (two checkouts, or a second `--state`) therefore never meet, and `down` finds
what belongs to a state directory even when that directory is gone.
"""

import hashlib
import os
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_STATE = REPOSITORY / ".cluster"

# Inside the cluster's mount namespace the state directory appears here, whatever its real path: configuration is
# the same for every cluster, and UNIX socket paths stay below their limit of 107 bytes.
INSIDE = Path("/run/octavo")

NODE = "node0"
API_PORT = 6443

_POOL = IPv4Network("10.128.0.0/9")
_BLOCK_PREFIX = 18  # half of it for services: bench-operator has thousands


def cache_folder() -> Path:
    """What may be shared between checkouts and outlives every cluster: toolchain, binaries, image layers."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "octavo"


@dataclass(frozen=True, slots=True)
class Layout:
    """Names and addresses of one cluster.

    Attributes:
        state: the state directory, absolute.
        name: name of the cgroup.
        link: the host's end of the virtual cable to the node (an interface name has at most 15 characters).
        block: the 16,384 addresses of this cluster:

            0                              8,192           12,288          16,383
            |          services              |     pods      |cable|  unused  |
    """

    state: Path
    name: str
    link: str
    block: IPv4Network

    @classmethod
    def of(cls, state: Path) -> "Layout":
        """Derive a layout from a state directory, which need not exist."""
        state = state.absolute().resolve()
        digest = hashlib.sha256(str(state).encode()).digest()
        blocks = 1 << (_BLOCK_PREFIX - _POOL.prefixlen)
        index = int.from_bytes(digest[:8], "big") % blocks
        start = int(_POOL.network_address) + index * (1 << (32 - _BLOCK_PREFIX))
        return cls(
            state=state,
            name=f"octavo-{digest.hex()[:8]}",
            link=f"oct-{digest.hex()[:8]}",
            block=IPv4Network((start, _BLOCK_PREFIX)),
        )

    @property
    def services(self) -> IPv4Network:
        """ClusterIPs."""
        return self._half(0)

    @property
    def pods(self) -> IPv4Network:
        """Pod addresses."""
        return next(self._half(1).subnets())

    @property
    def cable(self) -> IPv4Network:
        """The point-to-point network between host and node."""
        return IPv4Network((self.pods.broadcast_address + 1, 30))

    @property
    def host_ip(self) -> IPv4Address:
        """The host, as pods and the API server see it."""
        return self.cable[1]

    @property
    def node_ip(self) -> IPv4Address:
        """The node, the API server and the DNS server."""
        return self.cable[2]

    @property
    def api_service_ip(self) -> IPv4Address:
        """ClusterIP of `kubernetes.default`."""
        return self.services[1]

    @property
    def dns_service_ip(self) -> IPv4Address:
        """ClusterIP of `kube-dns`."""
        return self.services[10]

    @property
    def api_url(self) -> str:
        """The API server, from the host and from inside alike."""
        return f"https://{self.node_ip}:{API_PORT}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def images(self) -> Path:
        """Containerd's root, the one thing that `down` keeps."""
        return self.state / "containerd"

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.state / "log"

    def _half(self, number: int) -> IPv4Network:
        return list(self.block.subnets())[number]
