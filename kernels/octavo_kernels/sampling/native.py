"""One call of the library for all rows."""

from __future__ import annotations

import ctypes

import numpy as np

from octavo_kernels.native import Context, abi
from octavo_kernels.native.arrays import Array

__all__ = ["NativeSampling"]


class NativeSampling:
    """The functions of octavo_kernels.sampling over arrays, on one context, whose threads share out what is drawn.

    Args:
        context: The library and its threads.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def greedy(self, logits: Array) -> Array:
        """See octavo_kernels.sampling; logits: float32."""
        return self._call(logits, None)

    def sample(
        self, logits: Array, temperature: Array, top_k: Array, top_p: Array, min_p: Array, uniform: Array
    ) -> Array:
        """See octavo_kernels.sampling; logits: float32.

        Raises:
            MemoryError: The likelihoods of a row do not fit into memory.
        """
        columns = (temperature, top_k, top_p, min_p, uniform)
        types = (np.float32, np.int64, np.float32, np.float32, np.float64)
        assert all(column.dtype == dtype for column, dtype in zip(columns, types, strict=True)), (
            "columns of other types"
        )
        return self._call(logits, abi.Draws(*(column.ctypes.data for column in columns)))

    def log_softmax(self, logits: Array) -> Array:
        """The logarithm of each likelihood; 0 where it is not a number. logits: float32."""
        with np.errstate(invalid="ignore"):  # infinities
            scores: Array = logits - logits.max(axis=1, keepdims=True)
            scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        scores[np.isnan(scores)] = 0
        return scores

    def best(self, scores: Array, count: int) -> tuple[Array, Array]:
        """See octavo_kernels.sampling."""
        # partition leaves open which of equals it takes: it only tells the bound, and the few above and at it are sorted.
        bounds = np.partition(scores, -count, axis=1)[:, -count]
        values, tokens = np.empty((len(scores), count), scores.dtype), np.empty((len(scores), count), np.int64)
        for row, bound in enumerate(bounds):
            kept = np.flatnonzero(scores[row] >= bound)
            order = np.argsort(-scores[row, kept], stable=True)[:count]
            values[row], tokens[row] = scores[row, kept[order]], kept[order]
        return values, tokens

    def _call(self, logits: Array, draws: abi.Draws | None) -> Array:
        assert logits.dtype == np.float32, "the library takes float32"
        logits = np.ascontiguousarray(logits)
        rows, width = logits.shape
        tokens = np.empty(rows, np.int64)
        if not self._context.library.octavo_sample(
            self._context.handle,
            logits.ctypes.data,
            rows,
            width,
            None if draws is None else ctypes.byref(draws),
            tokens.ctypes.data,
        ):
            raise MemoryError(f"there is no memory to sample from {width} logits")
        return tokens
