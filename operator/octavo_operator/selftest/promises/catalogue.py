"""All promises, in the order in which they are tested."""

from octavo_operator.selftest.promises import api
from octavo_operator.selftest.promises.model import Promise

__all__ = ["PROMISES"]

PROMISES: dict[str, Promise] = {promise.name: promise for promise in (*api.PROMISES,)}
"""By name."""
