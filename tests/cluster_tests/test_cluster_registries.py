"""Pushing to a registry: names, and sentences for what goes wrong."""

from __future__ import annotations

import pytest

from cluster import registries
from cluster.errors import ClusterError

REMOTE = "registry.example:5000/you/octavo-operator:1"
PUSHING = f'Error: pushing image "localhost/octavo-operator:1" to "docker://{REMOTE}": '
CERTIFICATES = "/etc/containers/certs.d/registry.example:5000"
LOG_IN = "log in with `buildah login registry.example:5000`"
RETRYING = 'time="1" level=warning msg="Failed, retrying in 2s ... (1/3). Error: x: connection refused"\n'
REUSING = "trying to reuse blob sha256:00 at destination: "


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            f"{RETRYING}{PUSHING}{REUSING}pinging: dial tcp 10.0.0.1:5000: connect: connection refused",
            "pinging: dial tcp 10.0.0.1:5000: connect: connection refused; is the registry up, and is this its name?",
        ),
        (
            f"{PUSHING}{REUSING}x509: unknown authority",
            f"x509: unknown authority; to trust it, put its authority's certificate into {CERTIFICATES}/ca.crt",
        ),
        (
            f"{PUSHING}{REUSING}checking whether a blob sha256:00 exists in PLACE: unauthorized: a password please",
            f"PLACE: unauthorized: a password please; {LOG_IN}, or name a file of credentials with REGISTRY_AUTH_FILE",
        ),
        ("Error: invalid reference format", "invalid reference format"),
        ("Killed", "Killed"),
    ],
    ids=["refused", "authority", "credentials", "no hint", "no error line"],
)
def test_failure_is_one_sentence_with_what_helps(said: str, sentence: str) -> None:
    assert registries.failure(REMOTE, said) == f"cannot push {REMOTE}: {sentence}"


def test_check_name_refuses_a_url_and_says_what_to_write() -> None:
    registries.check_name("registry.example:5000/you")
    with pytest.raises(ClusterError, match=r"named without https://: registry\.example/you$"):
        registries.check_name("https://registry.example/you")
