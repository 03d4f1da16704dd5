"""Each native operation alone, with its reference's arguments, which are tensors: for tests of one against the other."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from octavo_kernels.linear.packing import PackedLinear, pack_groups, pack_linear, pack_quantised
from octavo_kernels.native import Context, abi
from octavo_kernels.native.arrays import Array, from_tensor, to_tensor
from octavo_kernels.paged_attention.batch import PagedBatch
from octavo_kernels.paged_attention.native import LOG2_E, NativeBatch, attention_struct
from octavo_kernels.paged_attention.rows import head_dim_of
from octavo_kernels.sampling.native import NativeSampling

__all__ = ["Operations", "Sampling", "pool_order", "token_order"]


def pool_order(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[blocks, block size, kv heads, row] as the library orders it: the same shape, other places in a block."""
    dim = head_dim_of(keys)

    def ordered(cache: torch.Tensor, *order: int) -> torch.Tensor:
        rows, scales = cache[..., :dim].permute(order), cache[..., dim:].permute(0, 2, 1, 3)
        if cache.dtype == torch.bfloat16:  # two rows side by side
            rows = rows.reshape(*rows.shape[:2], -1, 2, rows.shape[3]).transpose(3, 4)
        return torch.cat((rows.flatten(2), scales.flatten(2)), dim=2).view(cache.shape)

    return ordered(keys, 0, 2, 3, 1), ordered(values, 0, 2, 1, 3)


def token_order(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The way back from `pool_order`."""
    blocks, size, heads, _ = keys.shape
    dim = head_dim_of(keys)

    def ordered(cache: torch.Tensor, shape: tuple[int, int], *order: int) -> torch.Tensor:
        rows, scales = cache.view(blocks, heads, -1).tensor_split([dim * size], dim=2)
        if cache.dtype == torch.bfloat16:
            rows = rows.reshape(blocks, heads, shape[0] // 2, shape[1], 2).transpose(3, 4)
        return torch.cat(
            (
                rows.reshape(blocks, heads, *shape).permute(order),
                scales.reshape(blocks, heads, size, keys.shape[3] - dim).permute(0, 2, 1, 3),
            ),
            dim=3,
        )

    return ordered(keys, (dim, size), 0, 3, 1, 2), ordered(values, (size, dim), 0, 2, 1, 3)


class Operations:
    """The operations of one context.

    Args:
        context: The library and its threads.
    """

    def __init__(self, context: Context) -> None:
        self._library, self._handle = context.library, context.handle
        self._context = context

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        onto: torch.Tensor | None = None,
        *,
        quantization: str = "none",
        norm: tuple[torch.Tensor, float] | None = None,
    ) -> torch.Tensor:
        """As the reference, or with w8a16 or w8a8 as that of the quantised weight.

        Args:
            x: [tokens, in].
            weight: [out, in].
            bias: [out].
            onto: What the result is added to, in place.
            quantization: `none`, `w8a16` or `w8a8`.
            norm: Weight and eps of an `rms_norm` that x goes through first.
        """
        return self._linear(x, self._packed(weight, bias, quantization), onto, norm)

    def gated_linear(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, quantization: str = "none"
    ) -> torch.Tensor:
        """`silu_mul` of `linear`: [tokens, out / 2]."""
        packed = self._packed(weight, bias, quantization)
        y = torch.full((x.shape[0], packed.out), torch.nan)
        arguments = (ctypes.byref(packed.struct()), x.data_ptr(), y.data_ptr(), x.shape[0])
        assert self._library.octavo_gated_linear(self._handle, *arguments)
        return y[:, : packed.out // 2]

    def linear_of_groups(
        self,
        x: torch.Tensor,
        quants: torch.Tensor,
        scales: torch.Tensor,
        minima: torch.Tensor | None,
        bias: torch.Tensor | None,
        onto: torch.Tensor | None = None,
        *,
        norm: tuple[torch.Tensor, float] | None = None,
    ) -> torch.Tensor:
        """As `linear`, with the weight of `from_groups`."""
        packed = pack_groups(from_tensor(quants), from_tensor(scales), _array(minima), _array(bias))
        return self._linear(x, packed, onto, norm)

    def _packed(self, weight: torch.Tensor, bias: torch.Tensor | None, quantization: str) -> PackedLinear:
        arrays = from_tensor(weight), _array(bias)
        if quantization == "none":
            return pack_linear(*arrays)
        return pack_quantised(*arrays, quads=self._context.quads, int8_rows=quantization == "w8a8")

    def _linear(
        self,
        x: torch.Tensor,
        packed: PackedLinear,
        onto: torch.Tensor | None,
        norm: tuple[torch.Tensor, float] | None,
    ) -> torch.Tensor:
        y = torch.full((x.shape[0], packed.out), torch.nan) if onto is None else onto
        weight, eps = (norm[0].data_ptr(), norm[1]) if norm else (None, 0.0)
        arguments = (ctypes.byref(packed.struct()), x.data_ptr(), weight, eps, y.data_ptr(), x.shape[0])
        assert self._library.octavo_linear(self._handle, *arguments, onto is not None)
        return y

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """As the reference."""
        y = torch.full_like(x, torch.nan)
        self._library.octavo_rms_norm(self._handle, x.data_ptr(), weight.data_ptr(), eps, y.data_ptr(), *x.shape)
        return y

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """As the reference; overwrites the gate."""
        width = gate_up.shape[1] // 2
        self._library.octavo_silu_mul(self._handle, gate_up.data_ptr(), gate_up.shape[0], width)
        return gate_up[:, :width]

    def rotary_kv(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slots: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """As the reference, with caches in `pool_order`; cos and sin are one row per token."""
        tokens, heads, _ = qkv.shape
        q_heads = heads - 2 * k_cache.shape[2]
        layer = abi.Layer(
            q_norm=None if q_norm is None else q_norm.data_ptr(),
            k_norm=None if k_norm is None else k_norm.data_ptr(),
            keys=k_cache.data_ptr(),
            values=v_cache.data_ptr(),
        )
        rows = torch.arange(tokens)
        batch = abi.Batch(tokens=tokens, positions=rows.data_ptr(), slots=slots.data_ptr())
        shape = attention_struct(from_tensor(k_cache), q_heads, 1.0)
        structs = [ctypes.byref(struct) for struct in (shape, batch, layer)]
        self._library.octavo_rotary_kv(self._handle, *structs, eps, cos.data_ptr(), sin.data_ptr(), qkv.data_ptr())
        return qkv[:, :q_heads]

    def paged_attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        batch: PagedBatch,
        scale: float,
        *,
        rounded: bool = False,
    ) -> torch.Tensor:
        """As the reference, with caches in `pool_order`; rounded: queries and weights may be, to bfloat16."""
        rows = np.arange(q.shape[0])
        native = NativeBatch(batch, token_ids=rows, positions=rows, slots=rows, wanted_rows=rows)
        shape = attention_struct(from_tensor(k_cache), q.shape[1], 1.0, rounded=rounded)
        scaled, out = q * (scale * LOG2_E), torch.full_like(q, torch.nan)
        structs = [ctypes.byref(struct) for struct in (shape, native.struct)]
        pointers = [tensor.data_ptr() for tensor in (scaled, k_cache, v_cache, out)]
        assert self._library.octavo_paged_attention(self._handle, *structs, *pointers)
        return out


class Sampling:
    """`NativeSampling` of one context.

    Args:
        context: The library and its threads.
    """

    def __init__(self, context: Context) -> None:
        self._form = NativeSampling(context)

    def greedy(self, logits: torch.Tensor) -> torch.Tensor:
        """As the reference."""
        return to_tensor(self._form.greedy(from_tensor(logits)))

    def sample(self, logits: torch.Tensor, *columns: torch.Tensor) -> torch.Tensor:
        """As the reference."""
        return to_tensor(self._form.sample(*map(from_tensor, (logits, *columns))))

    def best(self, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As the reference."""
        values, tokens = self._form.best(from_tensor(scores), count)
        return to_tensor(values), to_tensor(tokens)


def _array(tensor: torch.Tensor | None) -> Array | None:
    return None if tensor is None else from_tensor(tensor)
