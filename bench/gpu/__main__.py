"""The GPU kernels and the engine where only a GPU can judge them; bench/gpu.sh starts it, docs/gpu.md explains it.

Each part is a process with a time limit, so that what one part does not survive the others do not notice, and what it
found until then is kept. Exit code: 0 when all parts ran and found nothing wrong, met targets or not; 1 when a part
failed or a kernel's numbers are wrong; 2 when nothing can run here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gpu.results import read
from bench.report import report, say

_SECONDS = {"numerics": 150, "kernels": 110, "engine": 110, "quantised": 45, "host": 60}
"""The parts, and the time that each may take on a GPU."""
_TUNING = {"tune": 900}
"""The same, of what runs when it is named, and in dry runs."""
_SHARES = {"numerics": ("bf16", "fp16")}
"""Of a part that compiles for longer than it computes: processes that run at once."""
_DRY_SECONDS = 300

_TARGETS = {
    "attention_decode_64x4096_bandwidth_share": 0.8,
    "attention_decode_256x840_bandwidth_share": 0.8,
    "attention_prefill_1x8192_peak_share": 0.5,
    "attention_prefill_8x2048_peak_share": 0.5,
    "streams_1_roofline_share": 0.7,
    "streams_8_roofline_share": 0.7,
    "streams_64_roofline_share": 0.7,
    "nano_roofline_share": 0.7,
    "graphs_equal_tokens_1": 1.0,
    "graphs_equal_tokens_8": 1.0,
    "graphs_equal_tokens_64": 1.0,
    "host_us_1": 150,
    "host_us_8": 150,
    "host_us_64": 150,
}
"""What is wanted: at least, but for microseconds of the host, which are to be fewer."""
_DRY_NAMES = {
    "attention_decode_64x4096_bandwidth_share": "attention_decode_2x40_bandwidth_share",
    "attention_prefill_1x8192_peak_share": "attention_prefill_1x20_peak_share",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts, judges, reports; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench/gpu.sh", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(_SECONDS)}, all of them when none is named; tune"
    )
    parser.add_argument("--dry-run", action="store_true", help="the same on the CPU, with tiny shapes and no meaning")
    arguments = parser.parse_args(argv)
    known = [*_SECONDS, *_TUNING]
    if unknown := [part for part in arguments.parts if part not in known]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(known)}")
    if not arguments.dry_run and (why := _unusable()):
        say(f"bench/gpu.sh: {why}; --dry-run runs the same on the CPU, with tiny shapes")
        return 2
    parts = [part for part in known if part in (arguments.parts or (known if arguments.dry_run else _SECONDS))]
    with tempfile.TemporaryDirectory(prefix="octavo-gpu-") as folder:
        states = {part: _run(part, Path(folder), dry=arguments.dry_run) for part in parts}
        found = {name: read(Path(folder) / f"{name}.json") for part in parts for name in _processes(part)}
    return _conclude(states, found, dry=arguments.dry_run)


def _unusable() -> str | None:
    """Why there is nothing to measure here."""
    import torch

    from octavo_kernels.gpu import unsupported_gpu

    if os.environ.get("TRITON_INTERPRET"):
        return "TRITON_INTERPRET is set, so no kernel would run on the GPU: unset it"
    if not torch.cuda.is_available():
        return "torch finds no usable GPU (`nvidia-smi` tells whether the driver does)"
    return unsupported_gpu(torch.cuda.get_device_capability())


def _processes(part: str) -> list[str]:
    """The names of a part's processes."""
    return [f"{part}-{share}" for share in _SHARES.get(part, ())] or [part]


def _run(part: str, folder: Path, *, dry: bool) -> str:
    """Runs a part; "ok", or what became of it."""
    limit = _DRY_SECONDS if dry else (_SECONDS | _TUNING)[part]
    say(f"{part}: at most {limit} s")
    environment = os.environ | {"OCTAVO_KERNELS": "triton"}
    if dry:
        # Threads of torch would wait for one another on a machine that has other work.
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    more = ["--dry-run"] if dry else []
    processes = [
        subprocess.Popen([sys.executable, "-m", "bench.gpu.part", name, str(folder), *more], env=environment)
        for name in _processes(part)
    ]
    try:
        codes = [process.wait(max(0, began + limit - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        return f"stopped after {limit} s"
    finally:
        for process in processes:
            process.kill()  # nothing where it has ended
            process.wait()
    say(f"{part}: {time.monotonic() - began:.0f} s")
    return next((f"ended with exit code {code}" for code in codes if code), "ok")


def _conclude(states: dict[str, str], found: dict[str, dict[str, Any]], *, dry: bool) -> int:
    figures: dict[str, float] = {}
    limits: dict[str, float] = {}
    for part in found.values():
        figures |= part["figures"]
        limits |= part["limits"]
    faults = [fault for part in found.values() for fault in part["faults"]]
    faults += [f"{part}: {state}" for part, state in states.items() if state != "ok"]
    judged = _judge(figures, dry=dry)
    for line in (*judged.values(), *(f"FAULT {fault}" for fault in faults)):
        say(line)
    if dry:
        say("a dry run: the figures mean nothing")
    report(
        "gpu-dry-run" if dry else "gpu",
        figures,
        limits | {name: target for name, target in _TARGETS.items() if name in figures},
        folder=Path(out) if (out := os.environ.get("OUT")) else None,
        parts=states,
        judged=judged,
        faults=faults,
        facts={part: each["facts"] for part, each in found.items()},
    )
    return 1 if faults else 0


def _judge(figures: dict[str, float], *, dry: bool) -> dict[str, str]:
    """A line for each target whose figure there is."""
    lines = {}
    for target_name, target in _TARGETS.items():
        name = _DRY_NAMES.get(target_name, target_name) if dry else target_name
        if name in figures:
            value = figures[name]
            fewer = name.startswith("host_us")
            met = value <= target if fewer else value >= target
            lines[name] = (
                f"{name} {value:.3g}, target {'≤' if fewer else '≥'} {target:g}: {'met' if met else 'NOT met'}"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
