"""`octavo replay`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from octavo_runtime import cli

HEADER = {
    "octavo_trace": 1,
    "block_size": 16,
    "num_blocks": 200,
    "max_model_len": 512,
    "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 64},
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty requests, ten a second; one in four is long."""
    path = tmp_path / "trace.jsonl"
    lines = [
        {
            "arrival": number / 10,
            "prompt": 200 if number % 4 == 0 else 20,
            "outputs": [60 if number % 4 == 0 else 10],
            "max_tokens": 300,
            "finished": number / 10 + 1,
            "hashes": [f"{number:016x}"],
        }
        for number in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in (HEADER, *lines)))
    return path


def replayed(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, dict[str, float]]:
    assert cli.run(["replay", *map(str, argv), "--json"]) == 0
    result: dict[str, dict[str, float]] = json.loads(capsys.readouterr().out)
    return result


def test_replay_prints_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["replay", str(trace)]) == 0
    said = capsys.readouterr()
    assert "step time assumed: 4 ms + 0.02 ms per token" in said.out
    assert "ttft p99 ms" in said.out
    assert not said.err


def test_replay_json_has_settings_and_both_sides(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = replayed(capsys, trace)
    assert result["settings"]["max_num_seqs"] == 4
    assert result["settings"]["num_blocks"] == 200
    assert result["replayed"]["requests"] == result["recorded"]["requests"] == 40
    assert result["replayed"]["ttft_p99_ms"] > 0


def test_replay_flags_change_what_was_recorded(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = replayed(
        capsys, trace, "--policy", "slo", "--admission", "never-evict", "--max-num-seqs", "9", "--block-size", "32",
        "--swap-space-blocks", "7", "--no-async-scheduling", "--rate-scale", "2",
    )["settings"]  # fmt: skip
    assert settings.items() >= {
        "policy": "slo", "admission": "never-evict", "max_num_seqs": 9, "block_size": 32, "num_blocks": 100,
        "num_host_blocks": 7, "async_scheduling": False, "rate_scale": 2.0,
    }.items()  # fmt: skip


def test_replay_slower_steps_and_a_faster_load_show(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = replayed(capsys, trace)["replayed"]
    slow = replayed(capsys, trace, "--step-time", "8,0.02,0")["replayed"]
    fast = replayed(capsys, trace, "--rate-scale", "50")["replayed"]
    assert slow["itl_p50_ms"] == pytest.approx(2 * plain["itl_p50_ms"], rel=0.1)
    assert fast["ttft_p99_ms"] > 2 * plain["ttft_p99_ms"]
    assert fast["seconds"] < plain["seconds"] / 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--step-time", "4,5"], "'4,5' is not three numbers of milliseconds, such as 4.0,0.02,0.00004"),
        (["--step-time", "-1,1,1"], "no part may be negative"),
        (["--num-blocks", "3"], "together more than the 48 that one request can have here"),
        (["--max-num-batched-tokens", "2"], "max_num_batched_tokens (2) must be at least max_num_seqs (4)"),
        (["--rate-scale", "0"], "rate-scale"),
    ],
)
def test_replay_refuses(trace: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    assert cli.run(["replay", str(trace), *argv]) == 2
    assert said in capsys.readouterr().err


def test_replay_of_what_is_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.txt"
    path.write_text("hello\n")
    assert cli.run(["replay", str(path)]) == 2
    assert f"{path}, line 1: no header of a trace" in capsys.readouterr().err


def test_replay_is_without_torch(trace: Path) -> None:
    code = "import sys; from octavo_runtime import cli; cli.run(sys.argv[1:]); print('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code, "replay", str(trace), "--json"], capture_output=True, text=True, check=True
    )
    assert ended.stdout.endswith("False\n")
