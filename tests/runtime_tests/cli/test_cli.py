"""The command line without a server: help, refusals, quantities."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_runtime import cli
from octavo_runtime.cli.failure import termination_log
from octavo_runtime.cli.options import AutoInt, Number, Quantity
from octavo_runtime.cli.serve import serve

REPOSITORY = Path(__file__).parents[3]


def test_help_is_quick_and_without_torch() -> None:
    code = "import sys; from octavo_runtime import cli; cli.run(['--help']); cli.run(['serve', '--help']); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.endswith("False\n")
    for word in ("octavo serve smollm2", "plan", "convert", "Memory and batching:", "[default: 2048", "4Gi"):
        assert word in ended.stdout


@pytest.mark.parametrize("command", [[], ["serve"], ["plan"], ["replay"], ["convert"], ["version"]], ids=" ".join)
def test_help_fits_80_columns(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if line.endswith("...") and "Usage:" not in line] == [], "a sentence is cut"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["serve", ".", "--max-num-seq", "4"], "'--max-num-seqs'?"),
        (["serve", ".", "--wholly-unknown"], "'--wholly-unknown'"),
        (["serve"], "Missing argument 'MODEL'"),
        (["srve"], "Did you mean 'serve'?"),
        (["serve", ".", "--block-size", "7"], "'7' is not one of '8', '16', '32'"),
        (["serve", ".", "--dtype", "int8"], "'int8' is not one of"),
        (["serve", ".", "--quantization", "w4a4"], "'w4a4' is not one of"),
        (["serve", ".", "--gpu-memory-utilization", "1.5"], "1.5"),
        (["serve", ".", "--kv-cache-memory", "4GB"], "write it as 4294967296, 4Gi"),
        (["serve", ".", "--max-model-len", "0"], "neither a positive number nor auto"),
        (["serve", ".", "--port", "70000"], "70000"),
        (
            ["serve", ".", "--scheduling-policy", "sjf"],
            "'sjf' is not one of 'fcfs', 'shortest-first', 'priority', 'slo'",
        ),
        (["serve", ".", "--admission-policy", "hope"], "'hope' is not one of 'expected', 'never-evict'"),
        (["serve", ".", "--swap-space", "4GB"], "write it as 4294967296, 4Gi"),
        (["serve", ".", "--kv-cache-memory-max", "0"], "nothing at all"),
        (["serve", ".", "--time-slice-tokens", "-1"], "-1 is not in the range x>=0"),
        (["serve", ".", "--target-itl-ms", "0"], "0.0 is not in the range x>0"),
        (["serve", ".", "--max-num-queued-tokens", "0"], "0 is not in the range x>=1"),
        (["serve", ".", "--max-num-seqs", "9" * 30], f"'{'9' * 30}' is more than 2147483647"),
        (["serve", ".", "--max-model-len", "9" * 30], f"'{'9' * 30}' is more than 2147483647"),
        (["serve", ".", "--kv-cache-memory", "9999999Ti"], "'9999999Ti' is more than 8 EiB"),
        (["serve", ".", "--shutdown-timeout", "nan"], "'nan' is no number"),
        (["plan", ".", "--gpu-memory-utilization", "nan"], "'nan' is no number"),
    ],
)
def test_bad_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    log = tmp_path / "log"
    assert cli.run([*argv, f"--termination-log={log}"]) == 2
    assert said in capsys.readouterr().err
    message = json.loads(log.read_text())
    assert message["code"] == "BadFlags"
    assert "--help" in message["hint"]


@pytest.mark.parametrize(
    ("flags", "said", "hint"),
    [
        ("--max-num-batched-tokens 8", "--max-num-batched-tokens 8 is less than --max-num-seqs 64", "Raise the former"),
        (
            "--time-slice-tokens 64",
            "--time-slice-tokens 64 needs --scheduling-policy shortest-first: under fcfs",
            "Add",
        ),
        (
            "--time-slice-tokens 64 --scheduling-policy priority",
            "needs --scheduling-policy shortest-first: under priority",
            "leave --time-slice-tokens out",
        ),
        ("--target-itl-ms 20", "--target-itl-ms 20.0 needs --scheduling-policy slo: under fcfs", "leave"),
        ("--target-ttft-ms 50 --scheduling-policy shortest-first", "--target-ttft-ms 50.0 needs", "slo"),
        (
            "--kv-cache-memory 2Gi --kv-cache-memory-max 1Gi",
            "--kv-cache-memory-max 1073741824 is less than --kv-cache-memory 2147483648",
            "Raise --kv-cache-memory-max",
        ),
        ("--swap-space 4", "--swap-space 4 is 4 bytes, less than a KV block", "--swap-space 4Gi for 4 GiB"),
        ("--swap-space 900Ti", "--swap-space asks for 989560464998400 bytes of host memory, and ", "or less"),
    ],
)
def test_bad_flags_that_contradict_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: str, said: str, hint: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert cli.run(["serve", str(tmp_path), *flags.split()]) == 2
    written = capsys.readouterr().err
    assert said in written
    assert hint in written


def test_flags_are_those_of_the_contract() -> None:
    contract = (REPOSITORY / "docs" / "contract.md").read_text()
    table = contract[contract.index("| field | flag |") : contract.index("An unknown flag ends")]
    flags = {flag for row in table.splitlines()[2:] for flag in re.findall(r"`(--[-a-z]+)`", row)}
    known = {flag for param in serve.params for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")}
    assert known == flags


def test_without_a_command_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    assert capsys.readouterr().err.startswith("Usage: octavo [OPTIONS] COMMAND")


def test_model_not_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serve", str(tmp_path / "nowhere")]) == 10
    assert f"there is no directory {tmp_path}/nowhere" in capsys.readouterr().err
    assert cli.run(["serve", str(tmp_path)]) == 10
    assert f"no config.json in {tmp_path}" in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.parametrize(("kernels", "said"), [("native", "256.6 MiB in bfloat16"), ("cpu", "513.1 MiB in float32")])
def test_plan_counts_weights_as_the_kernels_here_hold_them(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kernels: str, said: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, kernels)
    assert cli.run(["plan", str(smollm2), "--device", "cpu"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.model
def test_plan_refuses_what_the_kernels_here_cannot_do(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "cpu")
    assert cli.run(["plan", str(smollm2), "--device", "cpu", "--quantization", "w8a16"]) == 2
    assert "--quantization w8a16 needs the native kernels" in capsys.readouterr().err
    # For a GPU elsewhere it does not matter what runs here.
    assert cli.run(["plan", str(smollm2), "--gpu-memory", "80Gi", "--quantization", "w8a16"]) == 0


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


def test_quantity_or_none() -> None:
    assert Quantity(or_none=True).convert("0", None, None) == 0
    assert Quantity(or_none=True).convert("0Gi", None, None) == 0
    with pytest.raises(Exception, match="no amount of bytes"):
        Quantity(or_none=True).convert("none", None, None)


def test_auto_int() -> None:
    assert AutoInt().convert("auto", None, None) is None
    assert AutoInt().convert("4096", None, None) == 4096


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan"])
def test_number_refuses(text: str) -> None:
    with pytest.raises(Exception, match=f"'{text}' is no number"):
        Number(min=0).convert(text, None, None)


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
