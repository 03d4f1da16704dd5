"""One side's offline engine as a process, run by that side's own Python: `python worker.py ENGINE MODEL [SETTING=VALUE…]`

Reads lines of JSON, {"prompts": [[id, …], …], "output": tokens}, continues each prompt greedily by so many tokens, past
any end of sequence, and answers each line with one: {"seconds": …, "tokens": how many in all, …}. Whatever else the
engine prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Prompts = list[list[int]]
Generate = Callable[[Prompts, int], int]
"""Prompts and tokens for each to the number of tokens in all."""


def octavo(model: str, settings: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
    from octavo_runtime import LLM, SamplingParams

    llm = LLM(model, kv_cache_memory=1 << 30, **settings)

    def generate(prompts: Prompts, output: int) -> int:
        answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=output, ignore_eos=True))
        return sum(len(answer.token_ids) for answer in answers)

    return generate, {"weights_bytes": llm.info.weights_bytes}


def vllm(model: str, settings: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
    from vllm import LLM, SamplingParams

    llm = LLM(model, enforce_eager=True, max_model_len=2048, **settings)

    def generate(prompts: Prompts, output: int) -> int:
        answers = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            SamplingParams(temperature=0, max_tokens=output, ignore_eos=True),
            use_tqdm=False,
        )
        return sum(len(answer.outputs[0].token_ids) for answer in answers)

    return generate, {}


def llamacpp(model: str, settings: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
    from llama_cpp import Llama

    llm = Llama(model, n_ctx=2048, n_threads=2, n_threads_batch=2, flash_attn=True, verbose=False, **settings)

    def generate(prompts: Prompts, output: int) -> int:
        # One after the other: this library has no batches of sequences.
        for prompt in prompts:
            tokens = llm.generate(prompt, temp=0.0)
            for _ in range(output):
                next(tokens)
        return len(prompts) * output

    return generate, {}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine, model, *settings = sys.argv[1:]
    load = {"octavo": octavo, "vllm": vllm, "llamacpp": llamacpp}[engine]
    generate, more = load(model, dict(setting.split("=", 1) for setting in settings))
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        tokens = generate(request["prompts"], request["output"])
        answers.write(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens, **more}) + "\n")
        answers.flush()


if __name__ == "__main__":  # vLLM starts its engine as a process that imports this file again
    main()
