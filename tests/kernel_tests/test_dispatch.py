from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE, form

OPERATIONS = ["paged_attention", "rms_norm", "rotary_kv", "gated_activation", "sampling"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    form.cache_clear()
    yield
    form.cache_clear()


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("device", "forced", "expected"),
    [
        ("cpu", None, "cpu"),
        ("cpu", "reference", "reference"),
        ("cpu", "cpu", "cpu"),
        ("cpu", "native", "cpu"),
        ("cuda", "reference", "reference"),
    ],
)
def test_form(operation: str, device: str, forced: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    if forced:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, forced)
    assert form(operation, device).__name__ == f"octavo_kernels.{operation}.{expected}"


@pytest.mark.parametrize("forced", [None, "triton"])
def test_form_on_a_gpu(forced: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT_VARIABLE, raising=False)
    if forced:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, forced)
    assert form("paged_attention", "cuda").__name__ == "octavo_kernels.paged_attention.triton"


def test_form_forced_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "triton")
    with pytest.raises(RuntimeError, match="OCTAVO_KERNELS=triton, but decoder_step has no such form"):
        form("decoder_step", "cuda")


@pytest.mark.parametrize(
    ("device", "forced"), [("cuda", "cpu"), ("cuda", "native"), ("cpu", "triton"), ("cpu", "fast"), ("cpu", "CPU")]
)
def test_form_forced_and_impossible(device: str, forced: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, forced)
    with pytest.raises(RuntimeError, match=f"{ENVIRONMENT_VARIABLE}={forced}, but on {device} there are only"):
        form("rms_norm", device)


def test_form_unknown_device() -> None:
    with pytest.raises(RuntimeError, match="no kernels for the device 'tpu'"):
        form("rms_norm", "tpu")
