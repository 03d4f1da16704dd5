"""What every benchmark ends with: one JSON object as its last line, also in bench/results/NAME.json."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["percentiles", "report", "say"]

_RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("octavo", "torch", "triton", "tokenizers", "aiohttp", "msgspec", "pyzmq")


def say(text: str) -> None:
    """Tells the user how far the benchmark is."""
    print(text, file=sys.stderr, flush=True)


def percentiles(name: str, values: list[float]) -> dict[str, float]:
    """Figures NAME_p50, NAME_p90 and NAME_p99, by nearest rank."""
    ordered = sorted(values)
    return {
        f"{name}_p{percent}": ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
        for percent in (50, 90, 99)
        if ordered
    }


def report(
    bench: str,
    figures: Mapping[str, float],
    limits: Mapping[str, float],
    *,
    folder: Path | None = None,
    **more: object,
) -> None:
    """Writes the result and prints it.

    Args:
        bench: The benchmark's name.
        figures: What was measured.
        limits: What the hardware allows, under the same names where there is one.
        folder: Where the file goes; None: bench/results.
        more: Further keys of the object.
    """
    result = {
        "bench": bench,
        "figures": _rounded(figures),
        "limits": _rounded(limits),
        "hardware": _hardware(),
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
        **more,
    }
    folder = folder or _RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{bench}.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result), flush=True)


def _rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


def _hardware() -> dict[str, object]:
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    fields = dict(line.replace("\t", "").split(":", 1) for line in info if ":" in line)
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", "unknown").strip(),
        "cores": len(os.sched_getaffinity(0)),
        "isa": [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    try:
        ended = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # no git
        return "unknown"
    return ended.stdout.strip() or "unknown"
