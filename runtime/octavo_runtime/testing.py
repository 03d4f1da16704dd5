"""For tests: an executor that follows a script, a model directory without weights, and both as programs.

`python -m octavo_runtime.testing engine` is an engine process around a ScriptedExecutor;
`python -m octavo_runtime.testing serve DIR --flag …` is `octavo serve` with that engine.
The script is the file script.json of the model directory (`write_model` puts it there).
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from octavo_runtime.domain import EngineConfig, EngineInfo, ScheduledSequence, StepPlan, StepResult
from octavo_runtime.errors import DeviceLost

__all__ = [
    "CHAT_TEMPLATE",
    "ENGINE_COMMAND",
    "EOS",
    "Script",
    "ScriptedExecutor",
    "byte_level_tokenizer",
    "ids",
    "load_scripted",
    "write_model",
]

ENGINE_COMMAND = (sys.executable, "-m", "octavo_runtime.testing", "engine")

EOS = 256
"""The end-of-sequence token of `write_model`; the ids below it are the 256 bytes."""

_KV_BYTES = 256  # that a token would keep, if anything were kept


class Script(msgspec.Struct, frozen=True):
    """What a ScriptedExecutor does.

    A fault happens in the step that computes a prompt token with its number, so that a test starts it with a request.

    Attributes:
        reply: Output tokens of every request, repeated without end.
        step_seconds: How long a step takes.
        load_seconds: How long loading takes.
        load_error: Name of the StartError that loading ends with.
        max_model_len: Longest prompt plus output.
        num_blocks: Blocks in the KV pool.
        choice_shift: Each further answer to a prompt begins so many tokens further on in the reply.
        die_on: Prompt token that ends the process, as the kernel does when memory is short.
        hang_on: Prompt token at which the step never returns.
        raise_on: Prompt token at which the executor raises what nobody expects.
        lose_device_on: Prompt token at which the device is lost.
        fail_on: Prompt token whose request alone fails.
    """

    reply: tuple[int, ...]
    step_seconds: float = 0.0
    load_seconds: float = 0.0
    load_error: str = ""
    max_model_len: int = 512
    num_blocks: int = 256
    choice_shift: int = 0
    die_on: int | None = None
    hang_on: int | None = None
    raise_on: int | None = None
    lose_device_on: int | None = None
    fail_on: int | None = None


class ScriptedExecutor:
    """An Executor without a model: the n-th output token of an answer is the n-th of the script.

    A beam's candidates are the tokens of the script from its place on, without repetitions, each less likely than the
    one before. Block copies move nothing. A placeholder must stand for a token that the step before has sampled.

    Args:
        script: What to do.
        block_size: Tokens per block.
        num_host_blocks: Blocks in the host tier.
        max_num_blocks: Blocks up to which the pool may be resized; 0: as many as it has.

    Attributes:
        info: The limits, from the script.
        plans: The steps so far.
    """

    def __init__(
        self, script: Script, *, block_size: int = 16, num_host_blocks: int = 0, max_num_blocks: int = 0
    ) -> None:
        self._script = script
        self._failing: set[str] = set()
        self._sampled: set[int] = set()
        self.plans: list[StepPlan] = []
        self.info = EngineInfo(
            max_model_len=script.max_model_len,
            vocab_size=EOS + 1,
            eos_token_ids=(EOS,),
            num_blocks=script.num_blocks,
            block_size=block_size,
            device="cpu",
            dtype="float32",
            kv_cache_dtype="float32",
            max_num_blocks=max(script.num_blocks, max_num_blocks),
            num_host_blocks=num_host_blocks,
            block_bytes=_KV_BYTES * block_size,
        )

    def execute(self, plan: StepPlan) -> StepResult:
        """Takes a step as scripted."""
        self.plans.append(plan)
        began = time.perf_counter()
        time.sleep(self._script.step_seconds)
        tokens: list[int] = []
        logprobs: list[float] = []
        failed: dict[int, str] = {}
        for position, sequence in enumerate(plan.sequences):
            if sequence.feeds and sequence.number not in self._sampled:
                raise KeyError(sequence.number)
            if sequence.num_generated == 0:
                self._suffer(sequence.request_id, sequence.token_ids)
            if sequence.num_samples and sequence.request_id in self._failing:
                failed[position] = "the logits are not finite"
            for token, logprob in self._draw(sequence):
                tokens.append(token)
                logprobs.append(logprob)
        self._sampled = {sequence.number for sequence in plan.sequences if sequence.num_samples == 1}
        if not any(s.num_samples and s.sampling.needs_logprobs for s in plan.sequences):
            logprobs = []
        return StepResult(tokens, logprobs, failed, time.perf_counter() - began)

    def _draw(self, sequence: ScheduledSequence) -> list[tuple[int, float]]:
        """What a sequence samples, with logarithms of probabilities."""
        reply, shift = self._script.reply, self._script.choice_shift
        place, count = sequence.num_generated, sequence.num_samples
        if not sequence.sampling.use_beam_search:
            places = (place + (sequence.choice + draw) * shift for draw in range(count))
            return [(reply[place % len(reply)], -0.1) for place in places]
        candidates = dict.fromkeys(reply[(place + n) % len(reply)] for n in range(len(reply)))
        candidates.update(dict.fromkeys(range(count)))
        return [(token, -0.1 * (rank + 1)) for rank, token in enumerate(list(candidates)[:count])]

    def _suffer(self, request_id: str, token_ids: Sequence[int]) -> None:
        script = self._script
        if script.die_on in token_ids:
            os.kill(os.getpid(), 9)
        if script.hang_on in token_ids:
            time.sleep(3600)
        if script.raise_on in token_ids:
            raise RuntimeError("scripted fault")
        if script.lose_device_on in token_ids:
            raise DeviceLost("scripted: the device fell off the bus")
        if script.fail_on in token_ids:
            self._failing.add(request_id)


def ids(text: str) -> tuple[int, ...]:
    """Token ids of a text in the vocabulary of `write_model`: its bytes in UTF-8."""
    return tuple(text.encode())


def byte_level_tokenizer() -> Tokenizer:
    """A tokenizer with one token per byte, the hardest case for whoever shows text token by token."""
    tokenizer = Tokenizer(models.BPE(vocab={char: byte for byte, char in _byte_chars().items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return tokenizer


CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}{{ raise_exception('no tool messages here') }}{% endif %}"
    "{{ message.role + ': ' + message.content + '\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(folder: Path, script: Script | None = None, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """Makes a model directory that the programs of this module serve; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"architectures": ["Scripted"]}))
    (folder / "script.json").write_bytes(msgspec.json.encode(script or Script(reply=ids("Hello, world! "))))
    return folder


def load_scripted(config: EngineConfig, progress: Callable[[str, int, int], None]) -> ScriptedExecutor:
    """Loads the script of a model directory, as `load_executor` loads weights."""
    from octavo_runtime import errors

    script = msgspec.json.decode((Path(config.model) / "script.json").read_bytes(), type=Script)
    steps = 10
    for step in range(steps):
        progress("weights", step, steps)
        time.sleep(script.load_seconds / steps)
    if script.load_error:
        raise getattr(errors, script.load_error)("scripted: loading failed", hint="Try another script.")
    block_bytes = _KV_BYTES * config.block_size
    executor = ScriptedExecutor(
        script,
        block_size=config.block_size,
        num_host_blocks=config.swap_space // block_bytes,
        max_num_blocks=(config.kv_cache_memory_max or 0) // block_bytes,
    )
    if config.max_model_len is not None:
        executor.info = dataclasses.replace(executor.info, max_model_len=config.max_model_len)
    return executor


def _byte_chars() -> dict[int, str]:
    """GPT-2's table of bytes as printable characters, which byte-level vocabularies are written in."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def main(argv: Sequence[str]) -> int:
    """The programs of this module."""
    if argv[0] == "engine":
        from octavo_runtime.engine.process import run

        return run(load_scripted)
    from octavo_runtime import cli

    return cli.run(argv, engine_command=ENGINE_COMMAND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
