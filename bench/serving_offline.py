"""The offline rows of bench/serving.py, in a process of their own: `python -m bench.serving_offline MODEL [--kept MODEL] [--profile]`.

Prints one JSON object: figures, limits of this machine, and with --profile where the time of a step goes.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bench.report import say
from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_runtime import LLM, SamplingParams
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import EngineConfig
from octavo_runtime.engine import native_executor, torch_executor
from octavo_runtime.loading.plan import plan_model
from octavo_runtime.models.decoder import Decoder
from octavo_runtime.models.native_decoder import NativeDecoder
from octavo_runtime.text.output import OutputText

# Name: streams, prompt tokens, output tokens.
ROWS = {"decode_1": (1, 32, 128), "decode_8": (8, 128, 128), "decode_32": (32, 128, 128), "prefill_1024": (1, 1024, 1)}
KV_MEMORY = 1 << 30
_PROFILED = "decode_8"
_WARM_UP = 8  # tokens


def main(model: str, *, kept: str | None, profile: bool) -> dict[str, Any]:
    """Runs the rows.

    Args:
        model: Its directory.
        kept: Directory of the same with the GGUF file's own groups of four bits (w4a16); None: without these rows.
        profile: Also tell where the time of a step goes.
    """
    began = time.perf_counter()
    llm = LLM(model, kv_cache_memory=KV_MEMORY)
    figures = {"load_seconds": time.perf_counter() - began}
    rng = random.Random(0)
    _row(llm, rng, 1, 32, _WARM_UP)
    for name, (streams, prompt, output) in ROWS.items():
        seconds = _row(llm, rng, streams, prompt, output)
        tokens = prompt if name.startswith("prefill") else streams * output
        figures[f"{name}_tok_s"] = tokens / seconds
        say(f"  {name}: {tokens} tokens in {seconds:.1f} s = {tokens / seconds:.1f} tok/s")
    figures["weights_bytes"] = llm.info.weights_bytes
    figures["offline_peak_memory_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    limits = _limits(model, llm.info.weights_bytes)
    # What a step reads at one stream, beside what this machine can read in that time.
    streams, prompt, output = ROWS["decode_1"]
    step_bytes = llm.info.weights_bytes + (prompt + output / 2) * llm.info.block_bytes / llm.info.block_size
    figures["bandwidth_share_1"] = figures["decode_1_tok_s"] * step_bytes / (limits["read_gb_s"] * 1e9)
    if llm.info.kernels.startswith("native"):
        figures |= _against(llm, _on_torch(model), rng, "native_vs_torch", "native kernels {} times as fast as torch's")
        for mode in ("w8a16", "w8a8"):
            quantised = LLM(model, kv_cache_memory=KV_MEMORY, quantization=mode)
            figures |= _against(
                quantised, llm, rng, f"{mode}_vs_none", f"{mode} {{}} times as fast as weights as stored"
            )
            figures[f"{mode}_weights_bytes"] = quantised.info.weights_bytes
            del quantised
        if kept is not None:
            in_groups = LLM(kept, kv_cache_memory=KV_MEMORY)
            figures |= _against(in_groups, llm, rng, "w4a16_vs_none", "w4a16 {} times as fast as weights as stored")
            figures |= _four_bits(in_groups, rng, limits["read_gb_s"])
            del in_groups
    result: dict[str, Any] = {"figures": figures, "limits": limits, "kernels": llm.info.kernels}
    if profile:
        # One thing after the other, in one thread: else the phases of two steps overlap.
        result["profile"] = _profile(LLM(model, kv_cache_memory=KV_MEMORY, async_scheduling=False), rng)
    return result


def _four_bits(llm: LLM, rng: random.Random, read_gb_s: float) -> dict[str, float]:
    """One stream in w4a16, and its share of what memory allows."""
    streams, prompt, output = ROWS["decode_1"]
    speed = output / _row(llm, rng, streams, prompt, output)
    step_bytes = llm.info.weights_bytes + (prompt + output / 2) * llm.info.block_bytes / llm.info.block_size
    say(f"  decode_1_4bit: {speed:.1f} tok/s")
    return {"decode_1_4bit_tok_s": speed, "bandwidth_share_1_4bit": speed * step_bytes / (read_gb_s * 1e9)}


def _on_torch(model: str) -> LLM:
    os.environ[ENVIRONMENT_VARIABLE] = "cpu"
    llm = LLM(model, kv_cache_memory=KV_MEMORY)
    del os.environ[ENVIRONMENT_VARIABLE]
    return llm


def _against(faster: LLM, slower: LLM, rng: random.Random, figure: str, said: str) -> dict[str, float]:
    """How many times as fast one is as the other, row by row in turns; `said` tells it."""
    for each in (faster, slower):
        _row(each, rng, 1, 32, _WARM_UP)
    figures = {}
    for name, row in ROWS.items():
        seconds, others = (_row(each, rng, *row) for each in (faster, slower))
        figures[f"{name}_{figure}"] = others / seconds
        say(f"  {name}: {said.format(f'{others / seconds:.1f}')}")
    return figures


def _row(llm: LLM, rng: random.Random, streams: int, prompt: int, output: int) -> float:
    """Seconds that it takes to continue so many random prompts; no two share a prefix."""
    prompts = [[rng.randrange(3, 48_000) for _ in range(prompt)] for _ in range(streams)]
    began = time.perf_counter()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=output, ignore_eos=True))
    seconds = time.perf_counter() - began
    assert all(len(each.token_ids) == output for each in outputs), "an answer is short"
    return seconds


def _limits(model: str, weights_bytes: int) -> dict[str, float]:
    """What memory bandwidth and arithmetic of this machine allow for each row, both measured now, best of five.

    A decode step reads every weight once and the KV of every sequence; each token costs two operations per weight.
    """
    block = torch.ones(1 << 28)  # 1 GiB
    bandwidth = block.nbytes / _best(block.sum)
    del block
    left, right = torch.ones(2048, 2048), torch.ones(2048, 2048)
    flops = 2 * 2048**3 / _best(lambda: left @ right)
    plan = plan_model(Path(model), EngineConfig(model, kv_cache_memory=KV_MEMORY))
    operations = 2 * plan.weights_bytes / (4 if plan.dtype == "float32" else 2)  # for one token
    # Arithmetic is float32, whatever type the weights are held in.
    limits = {"read_gb_s": bandwidth / 1e9, f"gemm_{plan.dtype}_gflop_s": flops / 1e9}
    for name, (streams, prompt, output) in ROWS.items():
        prefill = streams * prompt * operations / flops
        if name.startswith("prefill"):
            limits[f"{name}_tok_s"] = prompt / prefill
            continue
        context = streams * (prompt + output / 2) * plan.kv_bytes_per_token
        step = max((weights_bytes + context) / bandwidth, streams * operations / flops)
        limits[f"{name}_tok_s"] = streams * output / (prefill + output * step)
    return limits


def _best(work: Any) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _profile(llm: LLM, rng: random.Random) -> dict[str, Any]:
    """Where the time of one row goes: by phase of a step, then by the Python line under which the time was spent."""
    with _timed(llm) as phases:
        seconds = _row(llm, rng, *ROWS[_PROFILED])
    steps = ROWS[_PROFILED][2]
    phases["rest"] = seconds - sum(phases.values())
    milliseconds = {name: round(1000 * spent / steps, 3) for name, spent in phases.items()}
    say(f"  {_PROFILED}, ms of each step: " + ", ".join(f"{name} {spent}" for name, spent in milliseconds.items()))
    lines = _sampled(lambda: _row(llm, rng, *ROWS[_PROFILED]))
    for line, share in lines.items():
        say(f"  {share:6.1%}  {line}")
    return {"row": _PROFILED, "ms_per_step": milliseconds, "share_by_line": lines}


@contextmanager
def _timed(llm: LLM) -> Iterator[dict[str, float]]:
    """Times the phases of a step; none of them contains another."""
    spent: dict[str, float] = defaultdict(float)
    native = llm.info.kernels.startswith("native")
    executor = native_executor if native else torch_executor
    parts = {
        "schedule": (Scheduler, "schedule"),
        "build batch": (executor, "build_batch"),
        "forward": (NativeDecoder if native else Decoder, "forward"),
        "sample": (executor, "sample_tokens"),
        "apply": (Scheduler, "apply"),
        "detokenise": (OutputText, "push"),
    }
    originals = {name: getattr(owner, attribute) for name, (owner, attribute) in parts.items()}

    def wrapped(name: str) -> Any:
        original = originals[name]

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                spent[name] += time.perf_counter() - began

        return call

    for name, (owner, attribute) in parts.items():
        setattr(owner, attribute, wrapped(name))
    try:
        yield spent
    finally:
        for name, (owner, attribute) in parts.items():
            setattr(owner, attribute, originals[name])


def _sampled(work: Any) -> dict[str, float]:
    """Share of the main thread's time under each innermost Python line, by py-spy, the fifteen largest."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "raw"
        program = str(Path(sys.executable).with_name("py-spy"))
        options = ["--format", "raw", "--rate", "100", "--output", str(out), "--pid", str(os.getpid())]
        process = subprocess.Popen([program, "record", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        work()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        if not out.exists():
            say(f"  py-spy found nothing: {errors.decode().strip().splitlines()[-1:]}")
            return {}
        counts: dict[str, int] = defaultdict(int)
        for line in out.read_text().splitlines():
            stack, count = line.rsplit(" ", 1)
            if "MainThread" in stack or "main (" in stack:
                counts[stack.split(";")[-1]] += int(count)
    total = sum(counts.values())
    largest = sorted(counts.items(), key=lambda item: -item[1])[:15]
    return {line: round(count / total, 4) for line, count in largest}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--kept")
    parser.add_argument("--profile", action="store_true")
    flags = parser.parse_args()
    print(json.dumps(main(flags.model, kept=flags.kept, profile=flags.profile)))
