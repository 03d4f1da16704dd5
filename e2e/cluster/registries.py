"""Pushes images from the build cache to a registry.

Credentials, certificates and registries without TLS are buildah's affair, which finds them where it always does
(docs/operations.md, "Registries").
"""

import re

from cluster import store, system
from cluster.buildah import CommandError, alone, buildah, storage, temporary
from cluster.errors import ClusterError
from cluster.progress import Progress

# What helps, by what buildah says.
_HINTS = (
    ("x509:", "to trust it, put its authority's certificate into /etc/containers/certs.d/{host}/ca.crt"),
    ("HTTP response to HTTPS client", "it has no TLS; docs/operations.md tells how to allow that"),
    ("unauthorized", "log in with `buildah login {host}`, or name a file of credentials with REGISTRY_AUTH_FILE"),
    ("denied", "log in with `buildah login {host}` as somebody who may push there"),
    ("dial tcp", "is the registry up, and is this its name?"),
)

_NOISE = re.compile(
    r'pushing image "[^"]*" to "[^"]*": |trying to reuse blob \S+ at destination: |checking whether a blob \S+ exists in '
)


def check_name(registry: str) -> None:
    """Refuse a URL where a name belongs.

    Raises:
        ClusterError: with what to write instead.
    """
    scheme, separator, name = registry.partition("://")
    if separator:
        raise ClusterError(f"a registry is named without {scheme}://: {name}")


def push(reference: str, registry: str, progress: Progress) -> str:
    """Push an image; layers that the registry has are not sent again.

    Args:
        reference: the image's local name.
        registry: prefix of its name there, such as `registry.example/team`.
        progress: told about it.

    Returns:
        Its name in the registry.

    Raises:
        ClusterError: there is no such image, not enough disk space, or the registry did not take it.
    """
    check_name(registry)
    remote = f"{registry.rstrip('/')}/{reference.removeprefix('localhost/')}"
    sizes = [layer.size for layer in store.layers(storage() / "storage", reference)]
    # buildah puts a layer together in a file before it sends it.
    system.check_disk(temporary(), 1.1 * max(sizes) / 2**30, f"pushing {reference}")
    with alone(), progress.stage(f"pushing {remote} ({sum(sizes) / 1e6:,.0f} MB before compression)"):
        try:
            # gzip, buildah's default, takes 40 % more processor time, here and on the nodes, and 15 % more room.
            buildah("push", "--quiet", "--compression-format=zstd", reference, f"docker://{remote}")
        except CommandError as error:
            raise ClusterError(failure(remote, error.said)) from error
    return remote


def failure(remote: str, said: str) -> str:
    """One sentence out of what buildah said when it could not push, with what helps."""
    errors = [line.removeprefix("Error: ") for line in said.splitlines() if line.startswith("Error: ")]
    reason = _NOISE.sub("", errors[-1] if errors else said)
    hint = next((hint for cause, hint in _HINTS if cause in reason), "")
    return f"cannot push {remote}: {reason}" + (f"; {hint.format(host=remote.partition('/')[0])}" if hint else "")
