"""`octavo convert`: a GGUF file becomes a directory that Octavo serves."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from octavo_runtime.errors import BadFlags

__all__ = ["convert"]


@click.command(short_help="Make a directory to serve from a GGUF file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out_dir", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float32"]),
    help="Type of the weights written, bfloat16 by default. bfloat16 is what most models are published in; float32 keeps every bit of the "
    "dequantised values, at twice the size.",
)
@click.option(
    "--quantization",
    type=click.Choice(["none", "keep"]),
    default="none",
    show_default=True,
    help="none: all weights become floating point. keep: groups of Q4_0, Q4_1 and Q8_0 are written as they are, four or "
    "eight bits with their scales and minima, and nothing is lost against the file (w4a16).",
)
def convert(
    file: Path, out_dir: Path, dtype: Literal["bfloat16", "float32"] | None, quantization: Literal["none", "keep"]
) -> None:
    """Convert a GGUF FILE to the directory OUT_DIR: config.json, safetensors weights, tokenizer and chat template.

    Llama, Qwen2 and Qwen3 models, in any quantisation, or with --quantization keep in those it keeps. OUT_DIR must not exist yet, and appears only when it is whole.

    \b
    Example:
      octavo convert SmolLM2-135M-Instruct.Q4_1.gguf models/smollm2
      octavo serve models/smollm2
      octavo convert --quantization keep SmolLM2-135M-Instruct.Q4_1.gguf w4a16
    """  # noqa: D301 - click takes the backspace itself for "keep these lines"
    from octavo_runtime.loading.convert import convert_gguf

    keep = quantization == "keep"
    if keep and dtype is not None:
        raise BadFlags(
            f"--dtype {dtype} with --quantization keep, which writes each tensor in its own type",
            hint="Leave one of them out.",
        )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"Reading {file.name}", total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, description=f"Writing {out_dir.name}", completed=done, total=total)

        convert_gguf(file, out_dir, dtype=dtype or "bfloat16", keep=keep, progress=show)
    click.echo(f"{out_dir} is ready: octavo serve {out_dir}")
