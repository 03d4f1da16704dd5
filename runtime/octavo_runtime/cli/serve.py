"""`octavo serve`: the server. Flags keep the spelling that vLLM's users know."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from octavo_runtime.cli.options import AutoInt, Count, Number, Quantity, SectionedCommand, SectionedOption
from octavo_runtime.errors import ModelNotFound
from octavo_runtime.settings import check_together, engine_config

__all__ = ["serve"]

_model = partial(click.option, cls=SectionedOption, section="Model")
_memory = partial(click.option, cls=SectionedOption, section="Memory and batching")
_schedule = partial(click.option, cls=SectionedOption, section="Scheduling")
_http = partial(click.option, cls=SectionedOption, section="HTTP")
_life = partial(click.option, cls=SectionedOption, section="Life of the process")

_DTYPES = ["auto", "float32", "float16", "bfloat16"]


@click.command(
    cls=SectionedCommand,
    context_settings={"show_default": True, "max_content_width": 110},
    epilog="Exit codes and metrics: docs/contract.md. Requests, fields and errors: docs/serving.md.",
)
@click.argument("model", type=click.Path(path_type=Path))
@_model(
    "--served-model-name", metavar="NAME", show_default="the directory's name", help="The model's name in requests."
)
@_model(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="auto takes a GPU if there is one."
)
@_model(
    "--dtype",
    type=click.Choice(_DTYPES),
    default="auto",
    help="Of weights and activations. auto: as stored on a GPU, float32 on a CPU.",
)
@_model(
    "--quantization",
    type=click.Choice(["none", "w8a16", "w8a8", "w4a16"]),
    default="none",
    help="Of weights. none: as stored. w8a16: rounded to eight bits while they are loaded, and activations to sixteen: "
    "half the memory of bfloat16 and faster, with answers that differ a little. w8a8: activations rounded to eight as "
    "well: faster still for many streams and long prompts, with answers that differ more. w4a16: groups of four bits, "
    "from a directory that `octavo convert --quantization keep` made, where none means the same.",
)
@_model(
    "--max-model-len", type=AutoInt(), default="auto", help="Longest prompt plus answer in tokens. auto: what fits."
)
@_model(
    "--generation-config",
    type=click.Choice(["auto", "none"]),
    default="auto",
    help="auto: what a request leaves open of temperature, top_k, top_p and min_p is as the model's "
    "generation_config.json recommends. none: as OpenAI has it.",
)
@_model(
    "--batch-invariant",
    is_flag=True,
    help="Promise that a request's answer does not depend on what else runs, to the last bit: alone, in any batch, in "
    "chunks, from the cache, after a preemption. Costs nothing with native CPU kernels, which compute so anyway; on a GPU "
    "it chooses slower kernels and wants weights as they are stored, or w8a8; where others would run, the start is refused.",
)
@_memory(
    "--kv-cache-dtype",
    type=click.Choice([*_DTYPES, "int8", "fp8"]),
    default="auto",
    help="Of the KV cache. auto: as --dtype. int8, and on GPUs of compute capability 8.9 and later fp8: eight bits and a "
    "scale for each token and head, half the memory of bfloat16, with answers that differ a little.",
)
@_memory(
    "--kv-cache-memory",
    type=Quantity(),
    show_default="1Gi on a CPU",
    help="Memory for the KV cache, such as 4Gi; on a GPU instead of --gpu-memory-utilization.",
)
@_memory(
    "--kv-cache-memory-max",
    type=Quantity(),
    show_default="no resizing",
    help="Let POST /kv_cache_memory resize the KV cache while the server runs, up to this size. For the operators of "
    "the server: whoever reaches the port can use it.",
)
@_memory(
    "--swap-space",
    type=Quantity(or_none=True),
    default=0,
    help="Host memory for KV blocks that had to make room, such as 4Gi; 0: none. What was put there is copied back "
    "instead of computed again, where copying is faster.",
)
@_memory(
    "--gpu-memory-utilization",
    type=Number(0, 1, min_open=True),
    default=0.9,
    help="Share of the GPU's memory for weights and KV cache together.",
)
@_memory(
    "--max-num-seqs",
    type=Count(min=1),
    default=64,
    help="Most sequences that run at once; a request has as many as it has answers or beams.",
)
@_memory(
    "--max-num-batched-tokens",
    type=Count(min=1),
    default=2048,
    help="Most tokens in one step. Fewer: smoother streams while long prompts come in. More: faster prompts.",
)
@_memory("--block-size", type=click.Choice([8, 16, 32]), default=16, help="Tokens in one block of the KV cache.")
@_memory(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    default=True,
    help="Keep the KV of finished requests for others that begin with the same tokens.",
)
@_schedule(
    "--scheduling-policy",
    type=click.Choice(["fcfs", "shortest-first", "priority", "slo"]),
    default="fcfs",
    help="Who goes first. fcfs: first come, first served. shortest-first: short requests, by prompt and predicted "
    "answer, before long ones, which wait behind younger ones for at most 40 times as long as their own work takes. "
    "priority: the lower number in the request's field priority, whatever runs. slo: as shortest-first, with those "
    "first that can still keep --target-ttft-ms, and steps so short that running streams keep --target-itl-ms.",
)
@_schedule(
    "--admission-policy",
    type=click.Choice(["expected", "never-evict", "max-utilization"]),
    default="expected",
    help="When a request may start. expected: when there will be room for what all are predicted to write. "
    "never-evict: when there is room for all that they could write, so that none ever makes room for another. "
    "max-utilization: when there is room now.",
)
@_schedule(
    "--async-scheduling/--no-async-scheduling",
    default=True,
    help="Plan a step while the one before it runs. The answers are the same without.",
)
@_schedule(
    "--time-slice-tokens",
    type=Count(min=0),
    default=0,
    help="With shortest-first: output tokens after which a running request gives way to a shorter one that waits; 0: "
    "never.",
)
@_schedule(
    "--target-ttft-ms",
    type=Number(min=0, min_open=True),
    default=500,
    help="With slo: the time to the first token that requests should have.",
)
@_schedule(
    "--target-itl-ms",
    type=Number(min=0, min_open=True),
    default=50,
    help="With slo: the time between two tokens that running streams should keep. Shorter: smoother streams, slower "
    "prompts.",
)
@_schedule(
    "--check-invariants",
    is_flag=True,
    help="Check the scheduler's state after each step, and end the server where it is wrong. Slow; to find faults.",
)
@_http("--host", default="", help="Address to listen on (default: all, of IPv4 and of IPv6).")
@_http("--port", type=click.IntRange(0, 65535), default=8000, help="Port to listen on; 0 picks a free one.")
@_http(
    "--max-num-queued-reqs",
    type=Count(min=0),
    default=1024,
    help="Requests that may wait beyond those that run; more are refused with 503.",
)
@_http(
    "--max-num-queued-tokens",
    type=Count(min=1),
    show_default="no limit",
    help="Prompt tokens that may wait for their first answer token; requests beyond are refused with 503, unless none "
    "waits.",
)
@_http(
    "--max-connection-age",
    type=Number(min=0),
    default=30,
    help="Seconds after which a connection is closed with its next answer, ± 20 %, so that new replicas get their "
    "share of clients; 0 keeps connections for ever.",
)
@_life(
    "--shutdown-timeout",
    type=Number(min=0),
    default=120,
    help="Seconds that running requests get to finish after SIGTERM.",
)
@_life(
    "--load-timeout",
    type=Number(min=0, min_open=True),
    default=600,
    help="Seconds without progress, while the model loads, after which /livez fails. Must be longer than the largest "
    "tensor takes to read.",
)
@_life(
    "--step-timeout",
    type=Number(min=0, min_open=True),
    default=120,
    help="Seconds without a step, while there is work, after which /livez fails. Must be longer than the longest step.",
)
@_life(
    "--termination-log",
    type=click.Path(path_type=Path),
    show_default="/dev/termination-log, where it exists",
    help="File for the JSON message that says why the process failed.",
)
@_life(
    "--record-trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Record when requests came and how long they were, without texts, for `octavo replay`; an existing FILE is "
    "replaced.",
)
@_life(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="JSON lines, or plain text on a terminal.",
)
@click.pass_context
def serve(ctx: click.Context, /, model: Path, served_model_name: str | None, log_level: str, **flags: Any) -> None:
    """Serve MODEL over HTTP with the OpenAI API.

    MODEL is a directory with config.json, safetensors weights and tokenizer.json, as Hugging Face lays it out;
    `octavo convert` makes one from a GGUF file, `octavo plan` tells what fits before anything is loaded.

    \b
      octavo serve ./smollm2
      octavo serve ./smollm2 --max-model-len 2048 --kv-cache-memory 512Mi
    """  # noqa: D301 - click wants a backspace, not its letters
    del flags["termination_log"]  # read by `run`, which also reports flags that do not parse
    _check_directory(model)
    given = {
        name: value
        for name, value in flags.items()
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    check_together(given, lambda name: f"--{name.replace('_', '-')}")
    import uvloop

    from octavo_runtime.ipc.client import ENGINE_COMMAND
    from octavo_runtime.logs import set_up_logging
    from octavo_runtime.server import serve as server
    from octavo_runtime.server.settings import ServerConfig

    set_up_logging(log_level)
    http = {each.name: flags[each.name] for each in fields(ServerConfig) if each.name in flags}
    config = ServerConfig(served_model_name=served_model_name or model.resolve().name, **http)
    engine = engine_config(str(model), flags)
    uvloop.run(server.serve(config, engine, engine_command=ctx.obj or ENGINE_COMMAND))


def _check_directory(model: Path) -> None:
    try:
        if (model / "config.json").is_file():
            return
        missing = f"no config.json in {model}" if model.is_dir() else f"there is no directory {model}"
    except OSError as error:  # such as a name that is too long
        missing = f"the directory {model} cannot be read: {error.strerror}"
    raise ModelNotFound(
        missing, hint="Give the directory of a model; `octavo convert FILE.gguf DIR` makes one from a GGUF file."
    )
