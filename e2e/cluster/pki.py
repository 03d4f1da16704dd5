"""Certificates and kubeconfigs of one cluster, made with the openssl command."""

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cluster import config
from cluster.errors import ClusterError
from cluster.layout import NODE, Layout

_DAYS = "3650"


@dataclass(frozen=True, slots=True)
class _Identity:
    name: str
    subject: str
    alternative_names: str = ""
    kubeconfig: bool = False


def create(layout: Layout) -> None:
    """Write `pki/` and every kubeconfig below the (empty) state directory.

    Raises:
        ClusterError: openssl failed; the message has its last words.
    """
    folder = layout.state / "pki"
    folder.mkdir(parents=True)
    _elliptic_key(folder / "ca.key")
    _openssl(
        "req",
        "-x509",
        "-key",
        f"{folder}/ca.key",
        "-out",
        f"{folder}/ca.crt",
        "-days",
        _DAYS,
        "-subj",
        "/CN=octavo-e2e",
    )
    # Service account tokens are signed with RS256.
    _openssl(
        "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", f"{folder}/service-accounts.key"
    )
    _openssl("pkey", "-in", f"{folder}/service-accounts.key", "-pubout", "-out", f"{folder}/service-accounts.pub")
    for identity in _identities(layout):
        _certificate(folder, identity)
        if identity.kubeconfig:
            target = layout.state / f"{identity.name}.kubeconfig"
            if identity.name == "admin":
                target = layout.kubeconfig
            target.touch(mode=0o600)
            target.write_text(
                config.kubeconfig(
                    layout,
                    authority=_base64(folder / "ca.crt"),
                    certificate=_base64(folder / f"{identity.name}.crt"),
                    key=_base64(folder / f"{identity.name}.key"),
                )
            )


def _identities(layout: Layout) -> list[_Identity]:
    server_names = [
        f"IP:{layout.node_ip}",
        "IP:127.0.0.1",
        f"IP:{layout.api_service_ip}",
        "DNS:localhost",
        "DNS:kubernetes",
        "DNS:kubernetes.default",
        "DNS:kubernetes.default.svc",
        "DNS:kubernetes.default.svc.cluster.local",
    ]
    return [
        _Identity("apiserver", "/CN=kube-apiserver", ",".join(server_names)),
        _Identity("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client"),
        _Identity("front-proxy-client", "/CN=front-proxy-client"),
        _Identity("admin", "/O=system:masters/CN=admin", kubeconfig=True),
        _Identity("kube-controller-manager", "/CN=system:kube-controller-manager", kubeconfig=True),
        _Identity("kube-scheduler", "/CN=system:kube-scheduler", kubeconfig=True),
        _Identity("kube-proxy", "/CN=system:kube-proxy", kubeconfig=True),
        _Identity("coredns", "/CN=coredns", kubeconfig=True),
        # The API server verifies the kubelet's address for logs, exec and port-forward.
        _Identity(
            "kubelet", f"/O=system:nodes/CN=system:node:{NODE}", f"IP:{layout.node_ip},DNS:{NODE}", kubeconfig=True
        ),
    ]


def _certificate(folder: Path, identity: _Identity) -> None:
    base = folder / identity.name
    extensions = ["extendedKeyUsage=clientAuth,serverAuth"]
    if identity.alternative_names:
        extensions.append(f"subjectAltName={identity.alternative_names}")
    Path(f"{base}.ext").write_text("\n".join(extensions) + "\n")
    _elliptic_key(Path(f"{base}.key"))
    _openssl("req", "-new", "-key", f"{base}.key", "-out", f"{base}.csr", "-subj", identity.subject)
    _openssl(
        *("x509", "-req", "-in", f"{base}.csr", "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key"),
        *("-CAcreateserial", "-out", f"{base}.crt", "-days", _DAYS, "-extfile", f"{base}.ext"),
    )


def _elliptic_key(path: Path) -> None:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(path))


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-500:]}")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
