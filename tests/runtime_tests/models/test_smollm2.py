"""The proof that the engine computes what transformers computes: 64 greedy tokens of each prompt, token for token.

The truth is transformers' own greedy path in float32. It is found as speculative decoding finds one: our engine
proposes, one forward pass of transformers over prompt and proposal shows where its path differs, and the proposal is
made anew from there. The tests then drive scheduler and executor along that path.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import (
    EngineConfig,
    Event,
    Request,
    SamplingParams,
    ScheduledSequence,
    SchedulerConfig,
    StepPlan,
)
from octavo_runtime.engine.batch import build_batch
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.engine.native_executor import NativeExecutor
from octavo_runtime.engine.testing import LoadedExecutor, poison

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NEW_TOKENS = 64
# Where the two best logits differ by less, rounding decides between them and either is right.
NEAR_TIE = 1e-3
# Around the edges of blocks of 8, 16 and 32, and far beyond.
LENGTHS = (1, 2, 7, 15, 16, 17, 33, 100, 257, 1500)
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, seed=0, ignore_eos=True)


@dataclass(frozen=True)
class GreedyPath:
    """A prompt and how transformers goes on.

    Attributes:
        prompt: Token ids.
        tokens: NEW_TOKENS of them.
        right: At each step, the tokens whose logit is within NEAR_TIE of the best.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    right: tuple[frozenset[int], ...]


def engine(model: Path, block_size: int, **settings: Any) -> LoadedExecutor:
    """Loaded, with NaN in the whole KV pool: whatever reads a slot that was not written shows."""
    config = EngineConfig(str(model), block_size=block_size, device="cpu", kv_cache_memory=256 << 20)
    executor = load_executor(replace(config, **settings))
    poison(executor)
    return executor


def scheduler(
    executor: LoadedExecutor, *, num_blocks: int | None = None, num_host_blocks: int | None = None, **config: Any
) -> Scheduler:
    info = executor.info
    return Scheduler(
        SchedulerConfig(**({"max_num_seqs": 16} | config)),
        num_blocks=num_blocks or info.num_blocks,
        block_size=info.block_size,
        max_model_len=info.max_model_len,
        eos_token_ids=info.eos_token_ids,
        num_host_blocks=info.num_host_blocks if num_host_blocks is None else num_host_blocks,
        swap_seconds_per_block=info.swap_seconds_per_block,
        prefill_seconds_per_token=info.prefill_seconds_per_token,
    )


def generate(executor: LoadedExecutor, prompts: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Our engine's own path, up to NEW_TOKENS beyond each prompt."""
    core = scheduler(executor)
    tokens: list[tuple[int, ...]] = [()] * len(prompts)
    for number, prompt in enumerate(prompts):
        core.add(Request(str(number), tuple(prompt), GREEDY))
    while core.has_work:
        plan = core.schedule(0.0)
        for event in core.apply(plan, executor.execute(plan)):
            tokens[int(event.request_id)] += event.token_ids
    return tokens


def find_paths(model: Path) -> list[dict[str, Any]]:
    """transformers' greedy paths of prompts cut from the licence."""
    from transformers import AutoModelForCausalLM

    text = (Path(__file__).parents[3] / "LICENSE").read_text()
    ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    starts = range(0, 90 * len(LENGTHS), 90)
    prompts = [ids[min(start, len(ids) - length) :][:length] for start, length in zip(starts, LENGTHS, strict=True)]
    truth = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    executor = engine(model, 16)
    paths: list[list[int]] = [[] for _ in prompts]
    right: list[list[list[int]]] = [[] for _ in prompts]
    while unfinished := [n for n in range(len(prompts)) if len(paths[n]) < NEW_TOKENS]:
        proposals = generate(executor, [(*prompts[n], *paths[n]) for n in unfinished])
        for n, proposal in zip(unfinished, proposals, strict=True):
            missing = NEW_TOKENS - len(paths[n])
            sequence = torch.tensor([[*prompts[n], *paths[n], *proposal[: missing - 1]]])
            with torch.inference_mode():
                logits = truth(sequence, logits_to_keep=missing).logits[0]
            for row, proposed in zip(logits, proposal, strict=False):
                best = int(row.argmax())
                paths[n].append(best)
                right[n].append((row >= row[best] - NEAR_TIE).nonzero()[:, 0].tolist())
                if best != proposed:
                    break
    return [
        {"prompt": prompt, "tokens": tokens, "right": accepted}
        for prompt, tokens, accepted in zip(prompts, paths, right, strict=True)
    ]


@pytest.fixture(scope="session")
def paths(smollm2: Path) -> list[GreedyPath]:
    """Kept beside the model: the truth depends on the model, on transformers and on this file, not on our engine."""
    key = hashlib.sha256(f"{version('transformers')} {version('torch')}".encode() + Path(__file__).read_bytes())
    found = smollm2.with_name(f"{smollm2.name}-greedy-{key.hexdigest()[:12]}.json")
    with found.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            partial = found.with_suffix(".partial")
            partial.write_text(json.dumps(find_paths(smollm2)))
            partial.rename(found)
    return [
        GreedyPath(tuple(path["prompt"]), tuple(path["tokens"]), tuple(map(frozenset, path["right"])))
        for path in json.loads(found.read_text())
    ]


def follow(
    executor: LoadedExecutor,
    core: Scheduler,
    paths: Sequence[GreedyPath],
    before_step: Callable[[int], None] = lambda _number: None,
) -> list[Event]:
    """Runs all paths at once, checks every sampled token, and goes on with the truth where there is a near tie."""
    for number, path in enumerate(paths):
        core.add(Request(str(number), path.prompt, GREEDY))
    events: list[Event] = []
    checked = 0
    for step_number in itertools.count():
        if not core.has_work:
            break
        before_step(step_number)
        plan = core.schedule(0.0)
        result = executor.execute(plan)
        assert not result.failed
        sampling = [sequence for sequence in plan.sequences if sequence.num_samples]
        for sequence, got in zip(sampling, result.tokens, strict=True):
            path, step = paths[int(sequence.request_id)], sequence.num_generated
            assert got in path.right[step], (
                f"prompt of {len(path.prompt)} tokens, output token {step}: {got}, not {path.tokens[step]}"
            )
            checked += 1
        truth = [paths[int(sequence.request_id)].tokens[sequence.num_generated] for sequence in sampling]
        events += core.apply(plan, replace(result, tokens=truth))
    assert checked == NEW_TOKENS * len(paths)
    return events


def test_paths_are_the_models(paths: list[GreedyPath], smollm2: Path) -> None:
    # The truth itself: as many prompts, lengths and tokens as promised, text that goes on, few ties.
    assert [len(path.prompt) for path in paths] == list(LENGTHS)
    assert all(len(path.tokens) == len(path.right) == NEW_TOKENS for path in paths)
    assert all(token in right for path in paths for token, right in zip(path.tokens, path.right, strict=True))
    assert sum(len(right) > 1 for path in paths for right in path.right) <= 3
    text = Tokenizer.from_file(str(smollm2 / "tokenizer.json")).decode(list(paths[-1].tokens))
    assert len(set(text.split())) > 10


@pytest.mark.parametrize("quantization", ["none", "w8a16", "w8a8"])
def test_answer(quantization: str, smollm2: Path) -> None:
    # Converter, tokenizer and model together know something.
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    executor = engine(smollm2, 16, quantization=quantization)
    core = scheduler(executor)
    prompt = tokenizer.encode("The capital of France is").ids
    core.add(Request("0", tuple(prompt), replace(GREEDY, max_tokens=2)))
    tokens: list[int] = []
    while core.has_work:
        plan = core.schedule(0.0)
        for event in core.apply(plan, executor.execute(plan)):
            tokens += event.token_ids
    assert tokenizer.decode(tokens) == " Paris."


def test_alone(paths: list[GreedyPath], smollm2: Path) -> None:
    executor = engine(smollm2, 16)
    for path in paths:
        follow(executor, scheduler(executor, enable_prefix_caching=False), [path])


@pytest.mark.parametrize(("block_size", "budget"), [(8, 100), (16, 2048), (32, 333)])
def test_batched(block_size: int, budget: int, paths: list[GreedyPath], smollm2: Path) -> None:
    executor = engine(smollm2, block_size)
    core = scheduler(executor, max_num_batched_tokens=budget)
    cold = follow(executor, core, paths)
    assert all(event.num_cached_tokens == 0 for event in cold)
    warm = follow(executor, core, paths)
    for event in warm:  # all full blocks of the prompt, though never its last token
        length = len(paths[int(event.request_id)].prompt)
        assert event.num_cached_tokens == (length - 1) // block_size * block_size


def test_batched_on_torch(paths: list[GreedyPath], smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where there is no native library, the tokens are the same.
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "cpu")
    executor = engine(smollm2, 16)
    assert executor.info.kernels == "cpu"
    follow(executor, scheduler(executor, max_num_batched_tokens=333), paths[:6])


@pytest.mark.parametrize("host_blocks", [0, 200])
def test_preempted(host_blocks: int, paths: list[GreedyPath], smollm2: Path) -> None:
    # Six sequences need 32 blocks in the end; those that give theirs up are computed again, or swapped out and in.
    executor = engine(smollm2, 16, swap_space=host_blocks * 16 * 46080)
    assert executor.info.num_host_blocks == host_blocks
    core = scheduler(executor, num_blocks=18, admission="max-utilization")
    follow(executor, core, paths[:6])
    stats = core.stats()
    assert stats.num_preemptions > 0
    assert (stats.num_swapped_out > 0, stats.num_swapped_in > 0) == (host_blocks > 0, host_blocks > 0)
    assert host_blocks or stats.num_recomputed_tokens > 0


def test_time_sliced(paths: list[GreedyPath], smollm2: Path) -> None:
    # Two seats for three requests: who runs when is another matter than what comes of it.
    executor = engine(smollm2, 16)
    core = scheduler(executor, max_num_seqs=2, policy="shortest-first", time_slice_tokens=16)
    follow(executor, core, paths[:3])
    assert core.stats().num_preemptions > 0


def test_resized(paths: list[GreedyPath], smollm2: Path) -> None:
    # Shrinks under way, which moves blocks and gives their memory back, and grows again.
    executor = engine(smollm2, 16, kv_cache_memory_max=300 << 20)
    info = executor.info
    core = Scheduler(
        SchedulerConfig(max_num_seqs=16, admission="max-utilization"),
        num_blocks=info.num_blocks,
        block_size=info.block_size,
        max_model_len=info.max_model_len,
        max_num_blocks=info.max_num_blocks,
        eos_token_ids=info.eos_token_ids,
    )
    sizes = {15: 40, 30: 18, 45: info.max_num_blocks}
    follow(executor, core, paths[:6], lambda number: core.resize(sizes[number]) if number in sizes else None)
    assert core.stats().num_blocks == info.max_num_blocks


def test_planned_ahead(paths: list[GreedyPath], smollm2: Path) -> None:
    # Async scheduling changes who waits for whom, not what is computed: the same tokens to the last bit.
    sampled = SamplingParams(temperature=0.9, top_p=0.95, seed=7, max_tokens=20, n=2)
    answers: list[dict[tuple[str, int], tuple[int, ...]]] = []
    executor = engine(smollm2, 16)
    for ahead in (False, True):
        config = EngineConfig(str(smollm2), scheduler=SchedulerConfig(async_scheduling=ahead))
        core = EngineCore(executor, config)
        for number, path in enumerate(paths[1:7:2]):
            core.add(Request(f"greedy {number}", path.prompt, replace(GREEDY, max_tokens=20)))
            core.add(Request(f"sampled {number}", path.prompt, sampled))
        got: dict[tuple[str, int], tuple[int, ...]] = {}
        while core.has_work:
            for event in core.step().events:
                key = (event.request_id, event.choice)
                got[key] = got.get(key, ()) + event.token_ids
        answers.append(got)
    assert answers[0] == answers[1]
    assert len(answers[0]) == 9
    assert all(len(answers[0][f"greedy {number}", 0]) == 20 for number in range(3))
    assert answers[0]["sampled 0", 0] != answers[0]["sampled 0", 1]


def test_int8_kv_cache(paths: list[GreedyPath], smollm2: Path) -> None:
    # Beside bfloat16: nearly the same likelihoods, in half the memory.
    prompt = paths[8].prompt
    wide, narrow = (engine(smollm2, 16, kv_cache_dtype=dtype) for dtype in ("bfloat16", "int8"))
    assert wide.info.block_bytes / narrow.info.block_bytes == 128 / 68
    logits = []
    for executor in (wide, narrow):
        chunk = ScheduledSequence("a", 0, prompt, 0, tuple(range(30, 50)), 1, 0, GREEDY)
        batch = build_batch(StepPlan((chunk,)), {}, 16)
        token_ids, positions, slots = batch.tokens
        assert isinstance(executor, NativeExecutor)
        found = executor._decoder.forward(token_ids, positions, slots, batch.paged, np.arange(len(prompt)))
        logits.append(torch.from_numpy(found).log_softmax(-1))
    divergence = torch.nn.functional.kl_div(logits[1], logits[0], log_target=True, reduction="batchmean")
    assert divergence < 0.02
    assert (logits[0].argmax(-1) == logits[1].argmax(-1)).double().mean() > 0.9


def test_int8_kv_cache_however_it_is_computed(paths: list[GreedyPath], smollm2: Path) -> None:
    # Its own path, each prompt alone, then beside others, in chunks, with too few blocks, and swapped out and in.
    prompts = [path.prompt for path in paths[3:7]]
    executor = engine(smollm2, 16, kv_cache_dtype="int8", swap_space=200 * 16 * 12240)
    own = [
        GreedyPath(prompt, tokens, tuple(frozenset([token]) for token in tokens))
        for prompt in prompts
        for tokens in generate(executor, [prompt])
    ]
    follow(executor, scheduler(executor, max_num_batched_tokens=20), own)
    recomputing = scheduler(executor, num_blocks=12, num_host_blocks=0, admission="max-utilization")
    follow(executor, recomputing, own)
    assert recomputing.stats().num_recomputed_tokens > 0
    swapping = scheduler(executor, num_blocks=12, admission="max-utilization")
    follow(executor, swapping, own)
    assert swapping.stats().num_swapped_in > 0
