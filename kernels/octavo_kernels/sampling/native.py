"""One call of the library for all rows."""

from __future__ import annotations

import ctypes

import torch

from octavo_kernels.native import Context, abi
from octavo_kernels.sampling.cpu import best

__all__ = ["NativeSampling"]


class NativeSampling:
    """The functions of octavo_kernels.sampling on one context, whose threads share out the rows.

    Args:
        context: The library and its threads.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.best = best

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """See octavo_kernels.sampling; logits: float32."""
        return self._call(logits, None)

    def sample(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        uniform: torch.Tensor,
    ) -> torch.Tensor:
        """See octavo_kernels.sampling; logits: float32.

        Raises:
            MemoryError: The likelihoods of a row do not fit into memory.
        """
        columns = (temperature, top_k, top_p, min_p, uniform)
        types = (torch.float32, torch.int64, torch.float32, torch.float32, torch.float64)
        assert all(column.dtype == dtype for column, dtype in zip(columns, types, strict=True)), (
            "columns of other types"
        )
        return self._call(logits, abi.Draws(*(column.data_ptr() for column in columns)))

    def _call(self, logits: torch.Tensor, draws: abi.Draws | None) -> torch.Tensor:
        assert logits.dtype == torch.float32, "the library takes float32"
        logits = logits.contiguous()
        rows, width = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        if not self._context.library.octavo_sample(
            self._context.handle,
            logits.data_ptr(),
            rows,
            width,
            None if draws is None else ctypes.byref(draws),
            tokens.data_ptr(),
        ):
            raise MemoryError(f"there is no memory to sample from {width} logits")
        return tokens
