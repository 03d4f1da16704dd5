"""All promises, in the order in which they are tested."""

from octavo_operator.selftest.promises import api, leaders, objects, pods, watches
from octavo_operator.selftest.promises.model import Promise

__all__ = ["PROMISES"]

PROMISES: dict[str, Promise] = {
    promise.name: promise
    for promise in (*objects.PROMISES, *watches.PROMISES, *api.PROMISES, *pods.PROMISES, *leaders.PROMISES)
}
"""By name."""
