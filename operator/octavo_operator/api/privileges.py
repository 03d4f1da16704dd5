"""What pods of InferenceServices may have beyond a restricted pod, where the operator was told so: a closed list."""

from enum import StrEnum

__all__ = ["Privilege"]


class Privilege(StrEnum):
    """What the operator's setting `--allow` and the chart's value `allow` can name."""

    HOST_PATH = "hostPath"
    HOST_NAMESPACES = "hostNamespaces"
    PRIVILEGED = "privileged"
