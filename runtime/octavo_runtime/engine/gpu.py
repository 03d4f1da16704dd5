"""Whether the GPU kernels run a model on a GPU, told before its weights are read."""

from __future__ import annotations

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, WITHOUT_KERNELS, forced_form
from octavo_runtime.errors import BadFlags, DeviceUnavailable, UnsupportedModel
from octavo_runtime.loading.spec import DecoderSpec

__all__ = ["require_invariant_kernels", "require_kernels"]


def require_kernels(spec: DecoderSpec, capability: tuple[int, int], dtype: str, kv_dtype: str) -> None:
    """Refuses what the Triton kernels cannot run, unless the environment forces another form.

    Args:
        spec: The model.
        capability: Compute capability of the GPU, major and minor.
        dtype: Of weights and activations, resolved.
        kv_dtype: Of the KV cache, resolved.

    Raises:
        BadFlags: The environment forces a form that there is not on a GPU, or this one has no fp8.
        DeviceUnavailable: The GPU is too old.
        UnsupportedModel: The shape or the type of its heads.
    """
    try:
        forced = forced_form("cuda")
    except RuntimeError as error:
        raise BadFlags(str(error)) from error
    if forced == "reference":
        return
    from octavo_kernels.gpu import unsupported_gpu
    from octavo_kernels.paged_attention import triton as paged_attention

    if why := unsupported_gpu(capability):
        raise DeviceUnavailable(why, hint=WITHOUT_KERNELS)
    if kv_dtype == "fp8" and (why := paged_attention.without_fp8(capability)):
        raise BadFlags(f"--kv-cache-dtype fp8: {why}", hint="Use --kv-cache-dtype int8, which takes as many bytes.")
    group = spec.num_heads // spec.num_kv_heads
    if why := paged_attention.unsupported(dtype, kv_dtype, spec.head_dim, group):
        raise UnsupportedModel(why, hint=WITHOUT_KERNELS)


def require_invariant_kernels() -> None:
    """Refuses --batch-invariant on a GPU where the environment forces a form other than Triton's.

    Raises:
        BadFlags: It does.
    """
    if (forced := forced_form("cuda")) == "reference":
        raise BadFlags(
            f"--batch-invariant needs the Triton kernels, but {ENVIRONMENT_VARIABLE}={forced}",
            hint=f"Leave {ENVIRONMENT_VARIABLE} or --batch-invariant out.",
        )
