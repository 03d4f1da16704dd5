"""The operator's settings: flags, each with an environment variable, and nothing else."""

import argparse
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from octavo_operator.api.names import Key
from octavo_operator.api.privileges import Privilege
from octavo_operator.errors import SettingsError

__all__ = ["Settings", "parse_settings"]

NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
LEVELS = ("debug", "info", "warning", "error")

DESCRIPTION = """\
Watches InferenceServices and gives each a Deployment and a Service that serve
it.

Needs the CRD inferenceservices.octavo.dev (crds/ in the repository, or the Helm
chart) and the rights that the chart grants. Several may run over the same
objects when each is given the same --lease: one of them works, the others stand
by and one takes over within 17 seconds. Without --lease it works at once, and
must be the only one.
"""

EPILOG = """\
Each flag can also be set by the environment variable in brackets; the flag
wins. The operator serves /livez, /readyz and /metrics on --port.

examples:
  octavo-operator --runtime-image registry.example/octavo-runtime:0.1.0
  # only these namespaces; Roles there are enough
  octavo-operator --runtime-image … --namespaces team-a,team-b
  # from a workstation
  octavo-operator --runtime-image … --kubeconfig ~/.kube/config
  # stand by for the one that the chart installed
  octavo-operator … --lease octavo-system/octavo-operator
  # what the autoscaler would have decided with other settings
  octavo-operator replay --help
  # its promises put to the test on a cluster in memory
  octavo-operator selftest --help
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator was started with.

    Attributes:
        runtime_image: image of the runtime for InferenceServices that name none.
        namespaces: the namespaces to serve; none means all.
        lease: (namespace, name) of the Lease that must be held to work; None to work at once.
        kubeconfig: path of the credentials; None for the pod's service account, else the usual places.
        host: address of the operator's own HTTP server; empty for all, since probes and Prometheus come from outside.
        port: port of the operator's own HTTP server.
        workers: how many InferenceServices are looked at at once; as many again are for edits alone.
        resync_seconds: time between two complete lists.
        log_level: one of the names of the logging module.
        json_logs: whether log lines are JSON.
        allowed: what InferenceServices may ask for beyond a restricted pod.
    """

    runtime_image: str
    namespaces: tuple[str, ...] = ()
    lease: Key | None = None
    kubeconfig: str | None = None
    host: str = ""
    port: int = 8080
    workers: int = 4
    resync_seconds: float = 300.0
    log_level: int = logging.INFO
    json_logs: bool = True
    allowed: frozenset[Privilege] = frozenset()


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Reads the command line and the environment.

    Raises:
        SettingsError: a value cannot be used.
        SystemExit: for --help, and for a command line that is not understood.
    """
    given = _parser(environment).parse_args(arguments)
    if not given.runtime_image:
        raise SettingsError(
            "no image of the runtime: pass --runtime-image REGISTRY/octavo-runtime:TAG "
            "(make images REGISTRY=… builds and pushes it)"
        )
    namespaces = tuple(name.strip() for name in given.namespaces.split(",") if name.strip())
    for name in namespaces:
        if not re.fullmatch(NAMESPACE, name):
            raise SettingsError(f"--namespaces: {name!r} is not a namespace's name; write them as team-a,team-b")
    if given.log_level not in LEVELS:
        raise SettingsError(f"--log-level: {given.log_level!r} is none of {', '.join(LEVELS)}")
    if given.log_format not in {"json", "text"}:
        raise SettingsError(f"--log-format: {given.log_format!r} is neither json nor text")
    return Settings(
        runtime_image=given.runtime_image,
        namespaces=namespaces,
        lease=_lease(given.lease),
        kubeconfig=given.kubeconfig or None,
        host=given.host,
        port=_number("--port", given.port, 1, 65535),
        workers=_number("--workers", given.workers, 1, 64),
        resync_seconds=_number("--resync-seconds", given.resync_seconds, 5, 86400),
        log_level=logging.getLevelNamesMapping()[given.log_level.upper()],
        json_logs=given.log_format == "json",
        allowed=frozenset(_privileges(given.allow)),
    )


def _lease(text: str) -> Key | None:
    namespace, _, name = text.partition("/")
    if text and not (re.fullmatch(NAMESPACE, namespace) and re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name)):
        raise SettingsError(f"--lease: {text!r} is not NAMESPACE/NAME, such as octavo-system/octavo-operator")
    return (namespace, name) if text else None


def _privileges(text: str) -> Iterator[Privilege]:
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in [*Privilege]:
            raise SettingsError(f"--allow: {name!r} is none of {', '.join(Privilege)}")
        yield Privilege(name)


def _number(flag: str, text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise SettingsError(f"{flag}: {text!r} is not a whole number from {least} to {most}")
    return int(text)


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="octavo-operator",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def option(flag: str, variable: str, default: str, what: str, metavar: str) -> None:
        parser.add_argument(
            flag, metavar=metavar, default=environment.get(variable, default), help=f"{what} [{variable}]"
        )

    option("--runtime-image", "OCTAVO_RUNTIME_IMAGE", "", "image of the runtime for objects that name none", "IMAGE")
    option("--namespaces", "OCTAVO_NAMESPACES", "", "serve only these namespaces (default: all)", "A,B")
    option("--lease", "OCTAVO_LEASE", "", "leader election: work only while holding this Lease", "NAMESPACE/NAME")
    option("--kubeconfig", "OCTAVO_KUBECONFIG", "", "credentials (default: the pod's, else $KUBECONFIG)", "PATH")
    option("--host", "OCTAVO_HOST", "", "address of /livez, /readyz and /metrics (default: all)", "ADDRESS")
    option("--port", "OCTAVO_PORT", "8080", "their port (default: 8080)", "PORT")
    option("--workers", "OCTAVO_WORKERS", "4", "objects looked at at once (default: 4)", "N")
    option("--resync-seconds", "OCTAVO_RESYNC_SECONDS", "300", "time between complete lists (default: 300)", "SECONDS")
    option("--log-level", "OCTAVO_LOG_LEVEL", "info", f"{', '.join(LEVELS)} (default: info)", "LEVEL")
    option("--allow", "OCTAVO_ALLOW", "", f"what pods may have: {', '.join(Privilege)} (default: none)", "A,B")
    option("--log-format", "OCTAVO_LOG_FORMAT", "json", "json or text (default: json)", "FORMAT")
    return parser
