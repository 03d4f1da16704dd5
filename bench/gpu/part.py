"""One part in a process of its own: `python -m bench.gpu.part NAME FOLDER [--dry-run]` leaves FOLDER/NAME.json."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.gpu.machine import Machine
from bench.gpu.results import Results

_NEEDED = {
    *("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"),
    *("typing_extensions", "numpy", "cuda", "triton"),  # with torch
    *("safetensors", "tqdm", "packaging", "yaml"),  # with transformers
    "msgspec",  # carried
}
"""What bench/gpu.sh may import besides Python's own and ours."""


def main() -> None:
    """Runs it. What it needs is imported when it needs it, so that a part's fault is its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    machine, folder = Machine(dry=arguments.dry_run), arguments.folder
    results = Results(folder / f"{arguments.name}.json")
    results.fact("gpu", machine.facts())
    try:
        _run(arguments.name, machine, results, folder)
    except Exception as error:
        results.fault(f"{arguments.name} ended with {type(error).__name__}: {error}")
        raise
    if machine.dry and (others := sorted(_third_party() - _NEEDED)):
        results.fault(f"{arguments.name} imports what docs/gpu.md does not name: {', '.join(others)}")


def _run(name: str, machine: Machine, results: Results, folder: Path) -> None:
    match name:
        case "numerics-bf16" | "numerics-fp16":
            from bench.gpu import numerics

            numerics.run(machine, results, name.removeprefix("numerics-"))
        case "kernels":
            from bench.gpu import kernels

            kernels.run(machine, results)
        case "tune":
            from bench.gpu import tuning

            tuning.run(machine, results)
        case "engine" | "quantised" | "host":
            from bench.gpu import engine

            run = {"engine": engine.run_engine, "quantised": engine.run_quantised, "host": engine.run_host}
            run[name](machine, results, folder)
        case _:
            sys.exit(f"there is no part {name}")


def _third_party() -> set[str]:
    """Packages that were imported and are neither Python's nor ours."""
    names = {name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
    ours = {"bench", "octavo_kernels", "octavo_runtime"}
    return {name for name in names - ours - sys.stdlib_module_names if not name.startswith("_")}


if __name__ == "__main__":
    main()
