from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_runtime.engine.gpu import require_kernels
from octavo_runtime.errors import BadFlags, DeviceUnavailable, UnsupportedModel
from octavo_runtime.loading.spec import DecoderSpec, read_spec

HOPPER = (9, 0)


@pytest.fixture
def spec(smollm2: Path) -> DecoderSpec:
    return read_spec(smollm2)  # 9 query heads and 3 kv heads of 64


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), HOPPER, (10, 0), (12, 0)], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_require_kernels_supported(spec: DecoderSpec, capability: tuple[int, int], dtype: str, head_dim: int) -> None:
    require_kernels(replace(spec, head_dim=head_dim), capability, dtype, dtype)


def test_require_kernels_old_gpu(spec: DecoderSpec) -> None:
    with pytest.raises(DeviceUnavailable, match=r"compute capability 7\.5, .* are for 8\.0 and later") as caught:
        require_kernels(spec, (7, 5), "float16", "float16")
    assert "OCTAVO_KERNELS=reference" in caught.value.hint


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "head_dim", "heads", "why"),
    [
        ("float32", "float32", 64, 4, "the dtype is float32, and the Triton kernels compute in float16 or bfloat16"),
        ("bfloat16", "float32", 64, 4, "the KV cache is in float32 and the model in bfloat16"),
        ("bfloat16", "bfloat16", 72, 4, "heads are 72 wide, and paged attention in Triton takes 64, 80, 96, 128, 256"),
        ("bfloat16", "bfloat16", 64, 128, "128 query heads share a kv head, .* at most 64"),
    ],
)
def test_require_kernels_unsupported_model(
    spec: DecoderSpec, dtype: str, kv_dtype: str, head_dim: int, heads: int, why: str
) -> None:
    model = replace(spec, head_dim=head_dim, num_heads=heads, num_kv_heads=1)
    with pytest.raises(UnsupportedModel, match=why) as caught:
        require_kernels(model, HOPPER, dtype, kv_dtype)
    assert "OCTAVO_KERNELS=reference" in caught.value.hint


@pytest.mark.parametrize("capability", [(8, 0), HOPPER], ids=str)
def test_require_kernels_int8_kv_cache(spec: DecoderSpec, capability: tuple[int, int]) -> None:
    require_kernels(spec, capability, "bfloat16", "int8")


def test_require_kernels_fp8_kv_cache(spec: DecoderSpec) -> None:
    require_kernels(spec, (8, 9), "float16", "fp8")
    with pytest.raises(BadFlags, match=r"fp8: the GPU has compute capability 8\.0, and e4m3 needs 8\.9") as caught:
        require_kernels(spec, (8, 0), "bfloat16", "fp8")
    assert "int8" in caught.value.hint


def test_require_kernels_reference_runs_everything(spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "reference")
    require_kernels(replace(spec, head_dim=72), (7, 0), "float32", "float32")


def test_require_kernels_form_of_another_device(spec: DecoderSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "native")
    with pytest.raises(BadFlags, match="OCTAVO_KERNELS=native, but on cuda there are only the forms triton, reference"):
        require_kernels(spec, HOPPER, "bfloat16", "bfloat16")
