"""`octavo plan`: what a model needs, told before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from octavo_runtime.cli.options import AutoInt, Count, Number, Quantity, SectionedCommand, SectionedOption
from octavo_runtime.domain import INT8_WEIGHTS, EngineConfig
from octavo_runtime.errors import BadFlags
from octavo_runtime.loading.plan import ModelPlan, plan_model
from octavo_runtime.loading.spec import DecoderSpec
from octavo_runtime.settings import engine_config

__all__ = ["plan"]

_DTYPES = ["auto", "float32", "float16", "bfloat16"]


@click.command(
    cls=SectionedCommand,
    context_settings={"show_default": True, "max_content_width": 110},
    short_help="Tell what MODEL needs, before anything is loaded.",
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--device",
    cls=SectionedOption,
    section="Model",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="auto takes a GPU if there is one.",
)
@click.option(
    "--dtype",
    cls=SectionedOption,
    section="Model",
    type=click.Choice(_DTYPES),
    default="auto",
    help="Of weights and activations. auto: as stored on a GPU, float32 on a CPU.",
)
@click.option(
    "--quantization",
    cls=SectionedOption,
    section="Model",
    type=click.Choice(["none", "w8a16", "w8a8", "w4a16"]),
    default="none",
    help="Of weights, as octavo serve takes it. none: as stored.",
)
@click.option(
    "--max-model-len",
    cls=SectionedOption,
    section="Model",
    type=AutoInt(),
    default="auto",
    help="Longest prompt plus answer in tokens. auto: what fits.",
)
@click.option(
    "--kv-cache-dtype",
    cls=SectionedOption,
    section="Memory",
    type=click.Choice([*_DTYPES, "int8", "fp8"]),
    default="auto",
    help="Of the KV cache. auto: as --dtype. int8 and fp8 have a scale for each token and head; fp8 on a GPU alone.",
)
@click.option(
    "--kv-cache-memory",
    cls=SectionedOption,
    section="Memory",
    type=Quantity(),
    show_default="1Gi on a CPU",
    help="Memory for the KV cache, such as 4Gi. Without it a GPU's is known only with --gpu-memory, or once the model "
    "is loaded.",
)
@click.option(
    "--gpu-memory",
    cls=SectionedOption,
    section="Memory",
    type=Quantity(),
    help="Plan for a GPU with so much memory, such as 80Gi; it need not be here.",
)
@click.option(
    "--gpu-memory-utilization",
    cls=SectionedOption,
    section="Memory",
    type=Number(0, 1, min_open=True),
    default=0.9,
    help="Share of the GPU's memory for weights and KV cache together.",
)
@click.option(
    "--max-num-batched-tokens",
    cls=SectionedOption,
    section="Memory",
    type=Count(min=1),
    default=2048,
    help="Most tokens in one step: what its activations take is not there for the KV cache of a GPU.",
)
@click.option(
    "--swap-space",
    cls=SectionedOption,
    section="Memory",
    type=Quantity(or_none=True),
    default=0,
    help="Host memory for KV blocks that are swapped out, such as 8Gi.",
)
@click.option(
    "--block-size",
    cls=SectionedOption,
    section="Memory",
    type=click.Choice([8, 16, 32]),
    default=16,
    help="Tokens in one block of the KV cache.",
)
@click.option("--json", "as_json", cls=SectionedOption, section="Output", is_flag=True, help="Print one JSON object.")
@click.option(
    "--termination-log",
    cls=SectionedOption,
    section="Output",
    type=click.Path(path_type=Path),
    help="Write the JSON object, or the reason of a failure, to this file as well.",
)
def plan(model: Path, *, as_json: bool, termination_log: Path | None, gpu_memory: int | None, **flags: Any) -> None:
    """Tell what MODEL needs: memory of the weights, of a token's KV, and how many requests fit at once.

    Reads config.json and the headers of the safetensors files alone, in well under a second, and finds most of what
    could be wrong with them: a missing or truncated file, a tensor of the wrong shape, a model that Octavo does not
    run.

    The engine sizes its memory by the same rules, but for two numbers that it measures when it starts and that are
    estimated here for a GPU: the activations of the largest step, and half a GiB for CUDA itself. What others take of
    the GPU is left out.

    \b
      octavo plan ./smollm2
      octavo plan ./smollm2 --kv-cache-memory 4Gi --max-model-len 4096 --json
      octavo plan ./llama-3.1-8b --gpu-memory 80Gi --swap-space 16Gi
    """  # noqa: D301 - click takes the backspace itself for "keep these lines"
    config = engine_config(str(model), flags)
    result = plan_model(model, config, gpu_memory=gpu_memory, runs_native=_runs_native)
    text = json.dumps({_camel(name): value for name, value in dataclasses.asdict(result).items()})
    if termination_log is not None:
        try:
            termination_log.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadFlags(
                f"--termination-log: {termination_log} cannot be written: {error.strerror}", hint="Name another file."
            ) from error
    click.echo(text if as_json else _readable(result))


def _runs_native(spec: DecoderSpec, config: EngineConfig) -> bool:
    # Imported for a CPU alone: numpy and the library take as long as all else.
    from octavo_runtime.models.native_decoder import open_native

    return open_native(spec, config, threads=1) is not None


def _camel(name: str) -> str:
    """A field's name as the Kubernetes API spells it: weights_bytes, weightsBytes."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _readable(result: ModelPlan) -> str:
    rows = [
        ("model", f"{result.architecture}, {result.num_layers} layers, up to {result.max_position:,} tokens"),
        (
            "attention",
            f"{result.num_heads} query heads, {result.num_kv_heads} key/value heads of {result.head_dim}",
        ),
        ("weights", f"{_size(result.weights_bytes)} in {_weights(result)} on {result.device}"),
    ]
    if result.gpu_memory_bytes is not None and result.activations_bytes is not None:
        rows += [
            ("activations", f"about {_size(result.activations_bytes)} in the largest step; an estimate"),
            ("GPU", f"{_size(result.gpu_memory_bytes)}, about 512 MiB of it for CUDA itself; an estimate"),
        ]
    rows.append(("KV per token", f"{_size(result.kv_bytes_per_token)} in {result.kv_cache_dtype}"))
    if result.kv_cache_bytes is None:
        rows.append(("KV cache", "what the GPU leaves beside the weights; name --gpu-memory or --kv-cache-memory"))
    else:
        rows += [
            ("KV cache", f"{_size(result.kv_cache_bytes)}: {result.kv_tokens:,} tokens"),
            ("blocks", f"{result.num_blocks:,} of {result.block_size} tokens"),
            ("longest request", f"{result.max_model_len:,} tokens, prompt and answer together"),
            ("at once", f"{result.max_concurrency:.1f} requests of that length"),
        ]
    if result.num_host_blocks:
        rows.append(("swap space", f"{result.num_host_blocks:,} blocks on the host"))
    return "\n".join(f"{name:<16}{text}" for name, text in rows)


def _weights(result: ModelPlan) -> str:
    if result.quantization in INT8_WEIGHTS and result.device != "cpu":
        return f"{result.quantization}, embedding and head as stored,"
    return result.weights_dtype if result.quantization == "none" else result.quantization


def _size(count: int) -> str:
    """Bytes for people."""
    power = min(3, max(0, count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
