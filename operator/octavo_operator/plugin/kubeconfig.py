"""Which cluster, context and namespace a command is about, found as kubectl finds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_operator.errors import SettingsError

__all__ = ["Target", "find_target"]

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask.

    Attributes:
        kubeconfig: its file, or several with `:` between them; None inside a pod without one.
        context: the name of the context, None inside a pod.
        namespace: the one that is meant.
    """

    kubeconfig: str | None
    context: str | None
    namespace: str


def find_target(
    kubeconfig: str | None, context: str | None, namespace: str | None, environment: Mapping[str, str]
) -> Target:
    """Reads the kubeconfig: the one given, else those of $KUBECONFIG, else ~/.kube/config.

    Of several files the first that names something wins.

    Raises:
        SettingsError: there is none, it cannot be read, or it has no such context.
    """
    named = kubeconfig or environment.get("KUBECONFIG", "")
    paths = [Path(part).expanduser() for part in named.split(":") if part] or [Path.home() / ".kube" / "config"]
    found = [path for path in paths if _exists(path)]
    if kubeconfig and not found:
        raise SettingsError(f"--kubeconfig: there is no file {kubeconfig}")
    if not found:
        if "KUBERNETES_SERVICE_HOST" in environment:
            own = ACCOUNT_NAMESPACE.read_text().strip() if ACCOUNT_NAMESPACE.exists() else "default"
            return Target(None, None, namespace or own)
        raise SettingsError(
            f"no kubeconfig: there is no file {' or '.join(map(str, paths))}; name one with --kubeconfig or $KUBECONFIG"
        )
    files = [_read(path) for path in found]
    current = context or next((one["current-context"] for one in files if one.get("current-context")), None)
    contexts: dict[str, Any] = {}
    for path, file in zip(found, files, strict=True):
        for one in file.get("contexts") or ():
            if not isinstance(one, dict) or not isinstance(one.get("context") or {}, dict):
                raise SettingsError(f"the kubeconfig {path} is no kubeconfig: {one!r} is no context")
            contexts.setdefault(str(one.get("name")), one.get("context") or {})
    if current is None:
        raise SettingsError(
            "the kubeconfig has no current context: give --context, or `kubectl config use-context NAME`"
        )
    if current not in contexts:
        known = ", ".join(sorted(map(str, contexts))) or "none"
        raise SettingsError(f"the kubeconfig has no context {current!r}; it has {known}")
    return Target(":".join(map(str, found)), current, namespace or contexts[current].get("namespace") or "default")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder that may not be entered
        raise SettingsError(f"the kubeconfig {path} cannot be read: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingsError(f"the kubeconfig {path} cannot be read: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"the kubeconfig {path} is no kubeconfig")
    return content
