"""The command line without a server: help, refusals, quantities."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_runtime import cli
from octavo_runtime.cli.failure import termination_log
from octavo_runtime.cli.options import AutoInt, Quantity


def test_help_is_quick_and_without_torch() -> None:
    code = "import sys; from octavo_runtime import cli; cli.run(['--help']); cli.run(['serve', '--help']); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("False\n")
    for word in ("octavo serve smollm2", "plan", "convert", "Memory and batching:", "[default: 2048", "4Gi"):
        assert word in ended.stdout


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serve", ".", "--max-num-seq", "4"], "Did you mean one of: '--max-num-queued-reqs', '--max-num-seqs'?"),
        (["serve", ".", "--wholly-unknown"], "'--wholly-unknown'"),
        (["serve"], "Missing argument 'MODEL'"),
        (["srve"], "Did you mean 'serve'?"),
        (["serve", ".", "--block-size", "7"], "'7' is not one of '8', '16', '32'"),
        (["serve", ".", "--dtype", "int8"], "'int8' is not one of"),
        (["serve", ".", "--gpu-memory-utilization", "1.5"], "1.5"),
        (["serve", ".", "--kv-cache-memory", "4GB"], "write it as 4294967296, 4Gi"),
        (["serve", ".", "--max-model-len", "0"], "neither a positive number nor auto"),
        (["serve", ".", "--port", "70000"], "70000"),
    ],
)
def test_bad_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    log = tmp_path / "log"
    assert cli.run([*argv, f"--termination-log={log}"]) == 2
    assert said in capsys.readouterr().err
    message = json.loads(log.read_text())
    assert message["code"] == "BadFlags"
    assert "--help" in message["hint"]


def test_bad_flags_that_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert cli.run(["serve", str(tmp_path), "--max-num-batched-tokens", "8"]) == 2
    assert "--max-num-batched-tokens 8 is less than --max-num-seqs 64" in capsys.readouterr().err


def test_model_not_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", str(tmp_path / "nowhere")]) == 10
    assert f"there is no directory {tmp_path}/nowhere" in capsys.readouterr().err
    assert cli.run(["serve", str(tmp_path)]) == 10
    assert f"no config.json in {tmp_path}" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["version"]) == 0
    assert cli.run(["--version"]) == 0
    plain, long = capsys.readouterr().out.splitlines()
    assert plain in long


@pytest.mark.parametrize(
    ("text", "size"),
    [("4294967296", 2**32), ("4Gi", 2**32), ("1.5Gi", 3 * 2**29), ("512Mi", 2**29), ("2G", 2 * 10**9), ("7k", 7000)],
)
def test_quantity(text: str, size: int) -> None:
    assert Quantity().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "Gi", "4 GiB", "-1Gi", "4gi", "0", "1e9", "٣Gi"])
def test_quantity_refuses(text: str) -> None:
    with pytest.raises(Exception, match=r"no amount of bytes|nothing at all"):
        Quantity().convert(text, None, None)


def test_auto_int() -> None:
    assert AutoInt().convert("auto", None, None) is None
    assert AutoInt().convert("4096", None, None) == 4096


def test_termination_log_is_found_without_a_parser() -> None:
    assert termination_log(["serve", "x", "--termination-log", "a"]) == Path("a")
    assert termination_log(["serve", "--termination-log=b", "x"]) == Path("b")
    assert termination_log(["serve", "--termination-log"]) in (None, Path("/dev/termination-log"))


def test_termination_message_fits_the_kubelet(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert cli.run(["serve", "é" * 9000, "--termination-log", str(log)]) == 10
    assert len(log.read_bytes()) <= 4096
    assert json.loads(log.read_text())["code"] == "ModelNotFound"


def test_termination_log_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", str(tmp_path), "--termination-log", str(tmp_path / "no" / "log")]) == 10
    assert "cannot be written" in capsys.readouterr().err
