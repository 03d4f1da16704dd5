"""Settings by one flat name each, as `octavo serve` and `LLM` take them, to an EngineConfig."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from octavo_runtime.domain import EngineConfig, SchedulerConfig
from octavo_runtime.engine.limits import available_memory
from octavo_runtime.errors import BadFlags

__all__ = ["check_together", "check_values", "engine_config"]

_DTYPES = ("auto", "float32", "float16", "bfloat16")
_ALLOWED: dict[str, tuple[object, ...]] = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": _DTYPES,
    "quantization": ("none", "w8a16", "w8a8", "w4a16"),
    "kv_cache_dtype": (*_DTYPES, "int8", "fp8"),
    "block_size": (8, 16, 32),
    "enable_prefix_caching": (True, False),
    "scheduling_policy": ("fcfs", "shortest-first", "priority", "slo"),
    "admission_policy": ("expected", "never-evict", "max-utilization"),
    "async_scheduling": (True, False),
    "batch_invariant": (True, False),
    "check_invariants": (True, False),
}
_LEAST = {
    "max_model_len": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "kv_cache_memory": 1,
    "kv_cache_memory_max": 1,
    "swap_space": 0,
    "time_slice_tokens": 0,
}
_POSITIVE = ("target_ttft_ms", "target_itl_ms")

_LEAST_SWAP_SPACE = 1 << 20
"""Less than this is no host tier but a number meant in another unit."""

# In a scheduler's own settings two names are shorter.
_FIELD = {"scheduling_policy": "policy", "admission_policy": "admission"}
_NAME = {field: name for name, field in _FIELD.items()}
_ENGINE = [each.name for each in fields(EngineConfig) if each.name not in {"model", "scheduler"}]
_SCHEDULER = [_NAME.get(each.name, each.name) for each in fields(SchedulerConfig)]


def engine_config(model: str, settings: Mapping[str, Any]) -> EngineConfig:
    """The configuration with these settings; what is left out takes its default."""
    scheduler = {_FIELD.get(name, name): settings[name] for name in _SCHEDULER if name in settings}
    engine = {name: settings[name] for name in _ENGINE if name in settings}
    return EngineConfig(model=model, scheduler=SchedulerConfig(**scheduler), **engine)


def check_values(settings: Mapping[str, Any]) -> None:
    """Checks names and values one by one.

    Raises:
        TypeError: A setting that does not exist.
        ValueError: A value that is not allowed.
    """
    names = [*_ENGINE, *_SCHEDULER]
    for name, value in settings.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise TypeError(f"LLM has no setting {name}: {hint}")
        if name in _ALLOWED and value not in _ALLOWED[name]:
            raise ValueError(f"{name} must be one of {', '.join(map(str, _ALLOWED[name]))}, not {value!r}")
        if name in _LEAST and value is not None and (type(value) is not int or value < _LEAST[name]):
            raise ValueError(f"{name} must be a whole number, {_LEAST[name]} or more, not {value!r}")
        if name in _POSITIVE and not value > 0:
            raise ValueError(f"{name} must be above 0, not {value!r}")
    if not 0 < settings.get("gpu_memory_utilization", 1) <= 1:
        raise ValueError(f"gpu_memory_utilization must be in (0, 1], not {settings['gpu_memory_utilization']!r}")


def check_together(settings: Mapping[str, Any], spelled: Callable[[str], str] = str) -> None:
    """Checks that settings do not contradict each other.

    Args:
        settings: Those that were given, without defaults.
        spelled: How a setting's name is written where the user gave it.

    Raises:
        BadFlags: Two of them cannot be meant together.
    """

    def said(name: str) -> str:
        return f"{spelled(name)} {settings[name]}" if name in settings else f"{spelled(name)} {_default(name)}"

    def value(name: str) -> Any:
        return settings.get(name, _default(name))

    if value("max_num_batched_tokens") < value("max_num_seqs"):
        raise BadFlags(
            f"{said('max_num_batched_tokens')} is less than {said('max_num_seqs')}: not all of them could get a token "
            "in a step",
            hint="Raise the former or lower the latter.",
        )
    policy = value("scheduling_policy")
    if value("time_slice_tokens") and policy != "shortest-first":
        raise BadFlags(
            f"{said('time_slice_tokens')} needs {spelled('scheduling_policy')} shortest-first: under {policy} no "
            "running request gives way to a shorter one",
            hint=f"Add {spelled('scheduling_policy')} shortest-first, or leave {spelled('time_slice_tokens')} out.",
        )
    for name in ("target_ttft_ms", "target_itl_ms"):
        if name in settings and policy != "slo":
            raise BadFlags(
                f"{said(name)} needs {spelled('scheduling_policy')} slo: under {policy} nothing aims at it",
                hint=f"Add {spelled('scheduling_policy')} slo, or leave {spelled(name)} out.",
            )
    first, most = settings.get("kv_cache_memory"), settings.get("kv_cache_memory_max")
    if first is not None and most is not None and most < first:
        raise BadFlags(
            f"{said('kv_cache_memory_max')} is less than {said('kv_cache_memory')}, which the KV cache has at first",
            hint=f"Raise {spelled('kv_cache_memory_max')}.",
        )
    _check_swap_space(settings.get("swap_space", 0), spelled("swap_space"))


def _check_swap_space(size: int, name: str) -> None:
    if size == 0:
        return
    if size < _LEAST_SWAP_SPACE:
        raise BadFlags(
            f"{name} {size} is {size} bytes, less than a KV block", hint=f"Write {name} 4Gi for 4 GiB, or 0 for none."
        )
    available = available_memory()
    if size > available:
        raise BadFlags(
            f"{name} asks for {size} bytes of host memory, and {available} are available",
            hint=f"Give the container more memory, or use {name} {available // 2} or less.",
            needed=size,
            available=available,
        )


def _default(name: str) -> Any:
    return getattr(_DEFAULTS, _FIELD.get(name, name))


_DEFAULTS = SchedulerConfig()
