"""`octavo replay`: what other settings, or another rate, would have given for a recorded load."""

from __future__ import annotations

import dataclasses
import json
import sys
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from octavo_runtime.cli.options import Count, Number, SectionedCommand, SectionedOption
from octavo_runtime.core.scheduler import Scheduler
from octavo_runtime.domain import SchedulerConfig
from octavo_runtime.errors import BadFlags, InvalidRequest
from octavo_runtime.replay import (
    EOS,
    Measured,
    Objectives,
    OpenLoop,
    RequestTimes,
    SimulatedExecutor,
    StepTimeModel,
    Trace,
    TraceError,
    fit_step_time,
    latencies,
    read_trace,
    replay_requests,
    simulate,
)

__all__ = ["replay"]

_scheduling = partial(click.option, cls=SectionedOption, section="Scheduling", show_default="as recorded")
_memory = partial(click.option, cls=SectionedOption, section="Memory", show_default="as recorded")
_load = partial(click.option, cls=SectionedOption, section="Load and time")
_output = partial(click.option, cls=SectionedOption, section="Output")


class _StepTime(click.ParamType[StepTimeModel]):
    """Three numbers of milliseconds: base,per_token,per_context."""

    name = "base,per_token,per_context"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> StepTimeModel:
        """Returns the model."""
        try:
            base, per_token, per_context = (float(part) / 1000 for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not three numbers of milliseconds, such as 4.0,0.02,0.00004", param, ctx)
        try:
            return StepTimeModel(base=base, per_token=per_token, per_context=per_context)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(
    cls=SectionedCommand,
    context_settings={"show_default": True, "max_content_width": 110},
    epilog="How to read the figures: docs/benchmarks.md.",
    short_help="Replay a recorded load with other settings.",
)
@click.argument("file", type=click.Path(path_type=Path))
@_scheduling(
    "--scheduling-policy",
    "--policy",
    "policy",
    type=click.Choice(["fcfs", "shortest-first", "priority", "slo"]),
    help="Who goes first.",
)
@_scheduling(
    "--admission",
    type=click.Choice(["expected", "never-evict", "max-utilization"]),
    help="When a request may start: as the blocks that all are expected to need, could need, or need now are there.",
)
@_scheduling("--max-num-seqs", type=Count(min=1), help="Most sequences that run at once.")
@_scheduling("--max-num-batched-tokens", type=Count(min=1), help="Most tokens in one step.")
@_scheduling("--async-scheduling/--no-async-scheduling", default=None, help="Plan a step while the one before it runs.")
@_scheduling(
    "--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="Share the KV of equal beginnings."
)
@_scheduling("--time-slice-tokens", type=Count(min=0), help="Under shortest-first; 0: none.")
@_scheduling(
    "--target-ttft-ms",
    type=Number(0, min_open=True),
    help="Time to the first token of a good request; slo aims at it.",
)
@_scheduling(
    "--target-itl-ms",
    type=Number(0, min_open=True),
    help="Time between two tokens that 99 % of a good request's keep; slo aims at it.",
)
@_memory("--num-blocks", type=Count(min=1), help="Blocks in the KV pool.")
@_memory("--block-size", type=click.Choice([8, 16, 32]), help="Tokens in one block.")
@_memory("--swap-space-blocks", type=Count(min=0), help="Blocks of host memory for what is swapped out.")
@_load(
    "--rate-scale",
    type=Number(0, min_open=True),
    default=1.0,
    help="How many times as fast the requests come: 2 doubles the rate.",
)
@_load(
    "--step-time",
    type=_StepTime(),
    show_default="as recorded, else fitted to the recorded times, else 4,0.02,0.00004",
    help="Milliseconds of a step, for each of its tokens, and for each token of context of a decoding sequence.",
)
@_load(
    "--link-gb-per-second",
    type=Number(0, min_open=True),
    show_default="as recorded, else 20",
    help="Between device and host.",
)
@_load(
    "--kv-bytes-per-token",
    type=Count(min=1),
    show_default="as recorded, else 131072",
    help="As `octavo plan` tells it.",
)
@_output("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(
    file: Path,
    *,
    num_blocks: int | None,
    block_size: int | None,
    swap_space_blocks: int | None,
    rate_scale: float,
    step_time: StepTimeModel | None,
    link_gb_per_second: float | None,
    kv_bytes_per_token: int | None,
    as_json: bool,
    **scheduling: Any,
) -> None:
    """Replay FILE, which `octavo serve --record-trace FILE` wrote, through the scheduler in virtual time.

    An hour of load takes seconds, needs no model and no device, and is the same every time. Flags that are left out
    are those of the recorded server, so a replay without flags shows how far the replay is from what was measured.

    \b
      octavo replay trace.jsonl
      octavo replay trace.jsonl --policy shortest-first --rate-scale 1.5
      octavo replay trace.jsonl --num-blocks 2000 --swap-space-blocks 4000 --json
    """  # noqa: D301 - click takes the backspace itself for "keep these lines"
    try:
        trace = read_trace(file)
    except TraceError as error:
        raise BadFlags(str(error), hint="`octavo serve --record-trace FILE` writes such a file.") from error
    header = trace.header
    config = _config(header.scheduler, scheduling)
    step_time, source = _step_time(trace, step_time)
    step_time = dataclasses.replace(
        step_time,
        link_bytes_per_second=1e9 * link_gb_per_second if link_gb_per_second else step_time.link_bytes_per_second,
        kv_bytes_per_token=kv_bytes_per_token or step_time.kv_bytes_per_token,
    )
    # The KV tokens stay as they are when only the blocks change their size.
    tokens = header.num_blocks * header.block_size
    size = block_size or header.block_size
    pool = {
        "num_blocks": num_blocks or tokens // size,
        "block_size": size,
        "num_host_blocks": header.num_host_blocks if swap_space_blocks is None else swap_space_blocks,
    }
    measured = _run(trace, config, step_time, rate_scale, **pool)
    objectives = Objectives(ttft=config.target_ttft_ms / 1000, itl=config.target_itl_ms / 1000)
    replayed = measured.figures(objectives, config.max_num_seqs)
    recorded = _recorded(trace)
    if as_json:
        result = {
            "file": str(file),
            "settings": {**dataclasses.asdict(config), **pool, "rate_scale": rate_scale},
            "step_time": {**dataclasses.asdict(step_time), "source": source},
            "replayed": replayed,
            "recorded": recorded,
        }
        click.echo(json.dumps(result))
    else:
        _print(replayed, recorded, f"step time {source}: {_in_ms(step_time)}")


def _config(recorded: SchedulerConfig, given: dict[str, Any]) -> SchedulerConfig:
    changed = {name: value for name, value in given.items() if value is not None}
    if changed.get("policy", "shortest-first") != "shortest-first":
        changed.setdefault("time_slice_tokens", 0)  # the recorded slices go with the recorded policy
    return dataclasses.replace(recorded, **changed)


def _step_time(trace: Trace, given: StepTimeModel | None) -> tuple[StepTimeModel, str]:
    """The model, and where it comes from."""
    recorded = trace.header.step_time
    if given is not None:
        return dataclasses.replace(
            recorded or given, base=given.base, per_token=given.per_token, per_context=given.per_context
        ), "given"
    if recorded is not None:
        return recorded, "recorded"
    fitted = fit_step_time(trace)
    return (fitted, "fitted") if fitted is not None else (StepTimeModel(), "assumed")


def _run(
    trace: Trace,
    config: SchedulerConfig,
    step_time: StepTimeModel,
    rate_scale: float,
    *,
    num_blocks: int,
    block_size: int,
    num_host_blocks: int,
) -> Measured:
    longest = min(trace.header.max_model_len, num_blocks * block_size)
    requests = replay_requests(trace, longest=longest, rate_scale=rate_scale)
    executor = SimulatedExecutor(requests, step_time, block_size)
    console = Console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        core = Scheduler(
            config,
            num_blocks=num_blocks,
            block_size=block_size,
            max_model_len=trace.header.max_model_len,
            eos_token_ids=(EOS,),
            num_host_blocks=num_host_blocks,
            swap_seconds_per_block=step_time.seconds_per_block(block_size),
            prefill_seconds_per_token=step_time.per_token,
        )
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=len(requests))
            return simulate(
                core,
                executor,
                OpenLoop(requests),
                plan_ahead=config.async_scheduling,
                progress=lambda finished: bar.update(task, completed=finished),
            )
    except ValueError as error:
        raise BadFlags(str(error)) from error
    except InvalidRequest as error:
        raise BadFlags(
            f"a request of the trace cannot run with these settings: {error}",
            hint="Take more --num-blocks, or a larger --max-num-seqs.",
        ) from error


def _recorded(trace: Trace) -> dict[str, float]:
    """What was measured, under the names of the replay; no ITL, since the time of each token is not recorded."""
    lines = trace.lines
    requests = []
    for line in lines:
        if line.first_token is None:
            continue
        tokens = max(line.outputs)
        mean = (line.finished - line.first_token) / (tokens - 1) if tokens > 1 else None
        gaps = array("d", [] if mean is None else [mean])
        requests.append(RequestTimes("", line.arrival, line.first_token, line.finished, sum(line.outputs), gaps))
    seconds = max(line.finished for line in lines) - lines[0].arrival
    return {
        "requests": len(lines),
        "seconds": seconds,
        "request_rate": len(lines) / seconds,
        "output_tokens_per_second": sum(sum(line.outputs) for line in lines) / seconds,
        **{name: value for name, value in latencies(requests).items() if not name.startswith("itl_")},
        "prefix_hit_rate": sum(line.cached for line in lines) / sum(line.prompt for line in lines),
    }


def _print(replayed: dict[str, float], recorded: dict[str, float], title: str) -> None:
    click.echo(title)
    table = Table()
    table.add_column("")
    table.add_column("replayed", justify="right")
    table.add_column("recorded", justify="right")
    for name, value in replayed.items():
        there = recorded.get(name)
        table.add_row(name.replace("_", " "), _number(value), "" if there is None else _number(there))
    Console(file=sys.stdout).print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"


def _in_ms(model: StepTimeModel) -> str:
    base, per_token, per_context = (1000 * part for part in (model.base, model.per_token, model.per_context))
    return f"{base:.3g} ms + {per_token:.3g} ms per token + {per_context:.3g} ms per token of context"
