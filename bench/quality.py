"""What do quantised weights cost in quality? `make bench-quality`.

A model reads this repository's licence and its decision records in windows of 512 tokens: once with its weights as they
are stored, once rounded to eight bits, and once in the four bits of the GGUF file that it comes as. At each token both
say what comes next. Perplexity is over the token that does come (teacher-forced); greedy agreement is how often both
would have picked the same.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from bench.report import report, say
from bench.serving import find_model
from octavo_runtime.domain import EngineConfig, SamplingParams, ScheduledSequence, StepPlan
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
    stored, stored_bytes, _ = _read(model, "none", texts)
    figures: dict[str, float] = {}
    # The other directory holds the four bits of the GGUF file that both come from.
    for mode, directory in ({"w8a16": model} | ({} if asked else {"w4a16": find_model(keep=True)})).items():
        quantised, quantised_bytes, kernels = _read(directory, mode, texts)
        figures[f"{mode}_bytes_saved"] = 1 - quantised_bytes / stored_bytes
        figures |= _compared("", mode, stored, quantised)
        first = 0
        for name, windows in texts.items():
            part = slice(first, first + len(windows) * (_WINDOW - 1))
            figures |= _compared(f"{name}_", mode, stored[part], quantised[part])
            first = part.stop
    report("quality", figures, _LIMITS, model=model.name, kernels=kernels)


def _windows(model: Path, files: list[Path]) -> list[list[int]]:
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    tokens: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    count = min(_MOST_WINDOWS, len(tokens) // _WINDOW)
    return [tokens[number * _WINDOW : (number + 1) * _WINDOW] for number in range(count)]


def _read(model: Path, quantization: str, texts: dict[str, list[list[int]]]) -> tuple[torch.Tensor, int, str]:
    """What is said of all texts, one after the other, the bytes of the weights, and the kernels."""
    say(f"{model.name}, {quantization}")
    config = EngineConfig(str(model), device="cpu", quantization=quantization, block_size=_BLOCK_SIZE)
    executor = load_executor(config)
    assert isinstance(executor, NativeExecutor)
    said = torch.cat([_said(executor, window) for windows in texts.values() for window in windows])
    return said, executor.info.weights_bytes, executor.info.kernels


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
