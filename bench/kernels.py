"""The GPU kernels as machine code, without a GPU: registers, spills, shared memory, loads and products of each.

`make bench-kernels` compiles every shipped configuration for every target, prints the table, and fails where it is not
the committed one (kernels/octavo_kernels/gpu/compiled-VERSION.txt, one for each version of Triton that is supported) or
the code is not as it was meant. UPDATE=1 rewrites the table; ONLY=paged_attention compiles one operation's kernels, and
compares or rewrites those lines. `make older-triton` does the same with the other version.
"""

from __future__ import annotations

import argparse
import difflib
import multiprocessing
import os
import sys
from pathlib import Path

import triton

import octavo_kernels.gpu
from bench.report import report, say
from octavo_kernels.gpu.ahead import Compiled, compile_ahead, faults, operations, table
from octavo_kernels.gpu.shipped import Shipped

_VERSION = ".".join(triton.__version__.split(".")[:2])
_TABLE = Path(octavo_kernels.gpu.__file__).with_name(f"compiled-{_VERSION}.txt")


def _work(only: str | None) -> list[tuple[str, Shipped, int]]:
    """Operation, what it ships, target."""
    return [
        (operation, shipped, target)
        for operation, module in operations()
        if only in {None, operation}
        for shipped in module.shipped()
        for target in shipped.targets
    ]


def _compile(place: tuple[str | None, int]) -> tuple[Compiled, list[str]]:
    """One of `_work`. Kernels are not picklable, so a process is told the place alone."""
    only, number = place
    operation, shipped, target = _work(only)[number]
    compiled = compile_ahead(shipped, target, operation)
    return compiled, faults(shipped, compiled)


def main() -> None:
    """Compiles, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one operation")
    parser.add_argument("--update", action="store_true", help="rewrite the committed table")
    arguments = parser.parse_args()
    if os.environ.get("TRITON_INTERPRET"):
        sys.exit("TRITON_INTERPRET is set, so nothing would be compiled: unset it")
    count = len(_work(arguments.only))
    if not count:
        known = ", ".join(operation for operation, _ in operations())
        sys.exit(f"--only {arguments.only}: no such operation with a Triton form; there are {known}")
    say(f"compiling {count} kernels")
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        done = pool.map(_compile, [(arguments.only, number) for number in range(count)], chunksize=1)
    compiled, wrong = [row for row, _ in done], [fault for _, found in done for fault in found]
    text = table(compiled)
    print(text, end="")
    if arguments.update:
        _update(text.splitlines(), arguments.only)
    committed = _committed(arguments.only)
    changed = list(difflib.unified_diff(committed, text.splitlines(), "committed", "now", lineterm=""))
    if changed:
        print("\n".join(changed))
        wrong.append(f"{_TABLE.name} is not what is compiled: `make bench-kernels UPDATE=1` rewrites it")
    report(
        "kernels",
        {
            "configs": len(compiled),
            "spills": sum(row.spills > 0 for row in compiled),
            "faults": len(wrong),
            "max_registers": max(row.registers for row in compiled),
            "max_shared_kib": max(row.shared for row in compiled) / 1024,
        },
        {"spills": 0, "faults": 0, "max_registers": 255, "max_shared_kib": 227},
    )
    if wrong:
        sys.exit("\n".join(wrong))


def _update(lines: list[str], only: str | None) -> None:
    """Writes the table; the lines of one operation leave the others' as they are."""
    head, rows = lines[:2], lines[2:]
    if only:
        rows += [line for line in _committed(None)[2:] if not line.startswith(f"{only} ")]
        rows.sort(key=lambda line: line.split()[0])
    _TABLE.write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")


def _committed(only: str | None) -> list[str]:
    lines = _TABLE.read_text(encoding="utf-8").splitlines() if _TABLE.exists() else []
    return [line for number, line in enumerate(lines) if number < 2 or only is None or line.startswith(f"{only} ")]


if __name__ == "__main__":
    main()
