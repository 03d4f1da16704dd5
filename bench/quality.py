"""What do quantised weights and a quantised KV cache cost in quality? `make bench-quality`.

A model reads this repository's licence and its decision records in windows of 512 tokens: once with its weights as they
are stored, once rounded to eight bits, once with activations in eight bits as well, once in the four bits of the GGUF
file that it comes as, and once with the stored weights and an int8 KV cache instead of one in float32. At each token two
of them say what comes next. Perplexity is over the token that does come (teacher-forced); greedy agreement is how often
both would have picked the same.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from bench.report import report, say
from bench.serving import find_model
from octavo_runtime.domain import EngineConfig, EngineInfo, SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.native_executor import NativeExecutor

_WINDOW = 512
_MOST_WINDOWS = 16  # of each text
_BLOCK_SIZE = 16
_REPOSITORY = Path(__file__).parent.parent
_LIMITS = {"w8a16_perplexity_rise": 0.005, "w8a16_greedy_agreement": 0.95}


def main() -> None:
    """Reads the texts with each kind of weights and reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model's directory (default: SmolLM2-135M-Instruct)")
    asked = parser.parse_args().model
    model = asked or find_model()
    texts = {
        "licence": _windows(model, [_REPOSITORY / "LICENSE"]),
        "records": _windows(model, sorted((_REPOSITORY / "docs" / "adr").glob("0*.md"))),
    }
    stored, stored_info = _read(EngineConfig(str(model)), texts)
    configs = {name: EngineConfig(str(model), quantization=name) for name in ("w8a16", "w8a8")}
    if not asked:  # this directory holds the four bits of the GGUF file that both come from
        configs["w4a16"] = EngineConfig(str(find_model(keep=True)), quantization="w4a16")
    configs["int8_kv"] = EngineConfig(str(model), kv_cache_dtype="int8")
    figures: dict[str, float] = {}
    for mode, config in configs.items():
        quantised, info = _read(config, texts)
        if mode == "int8_kv":
            figures["int8_kv_bytes_saved"] = 1 - info.block_bytes / stored_info.block_bytes
        else:
            figures[f"{mode}_bytes_saved"] = 1 - info.weights_bytes / stored_info.weights_bytes
        figures |= _compared("", mode, stored, quantised)
        first = 0
        for name, windows in texts.items():
            part = slice(first, first + len(windows) * (_WINDOW - 1))
            figures |= _compared(f"{name}_", mode, stored[part], quantised[part])
            first = part.stop
    report("quality", figures, _LIMITS, model=model.name, kernels=stored_info.kernels)


def _windows(model: Path, files: list[Path]) -> list[list[int]]:
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tokens: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    count = min(_MOST_WINDOWS, len(tokens) // _WINDOW)
    return [tokens[number * _WINDOW : (number + 1) * _WINDOW] for number in range(count)]


def _read(config: EngineConfig, texts: dict[str, list[list[int]]]) -> tuple[torch.Tensor, EngineInfo]:
    """What is said of all texts, one after the other, and what the engine is."""
    executor = load_executor(replace(config, device="cpu", block_size=_BLOCK_SIZE))
    assert isinstance(executor, NativeExecutor)
    info = executor.info
    say(f"{Path(config.model).name}, {info.kernels}, KV cache in {info.kv_cache_dtype}")
    return torch.cat([_said(executor, window) for windows in texts.values() for window in windows]), info


@torch.inference_mode()
def _said(executor: NativeExecutor, tokens: list[int]) -> torch.Tensor:
    """[tokens - 1, 2]: the loss of each token but the first, and which one was the likeliest in its place."""
    sequence = ScheduledSequence(
        "text", 0, tuple(tokens), 0, tuple(range(_WINDOW // _BLOCK_SIZE)), 1, 0, SamplingParams(temperature=0, seed=0)
    )
    batch = build_batch(StepPlan((sequence,)), {}, _BLOCK_SIZE)
    token_ids, positions, slots = batch.tokens
    rows = np.arange(len(tokens) - 1)
    logits = torch.from_numpy(executor._decoder.forward(token_ids, positions, slots, batch.paged, rows))
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")
    return torch.stack((losses.double(), logits.argmax(-1).double()), dim=1)


def _compared(prefix: str, mode: str, stored: torch.Tensor, quantised: torch.Tensor) -> dict[str, float]:
    rise = quantised[:, 0] - stored[:, 0]
    return {
        f"{prefix}tokens": rise.numel(),
        f"{prefix}none_perplexity": math.exp(float(stored[:, 0].mean())),
        f"{prefix}{mode}_perplexity_rise": math.exp(float(rise.mean())) - 1,
        f"{prefix}{mode}_perplexity_rise_error": float(rise.std()) / math.sqrt(rise.numel()),  # one standard error
        f"{prefix}{mode}_greedy_agreement": float((stored[:, 1] == quantised[:, 1]).double().mean()),
    }


if __name__ == "__main__":
    main()
