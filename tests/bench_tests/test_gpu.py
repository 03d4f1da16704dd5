"""bench/gpu.sh where no GPU is: what it refuses, what it keeps, how it judges. `make bench-gpu DRY=1` runs all of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from bench.gpu import __main__ as program
from bench.gpu.engine import _Loaded, _Step
from bench.gpu.model import write_model
from bench.gpu.results import Results, read
from octavo_kernels.dispatch import ENVIRONMENT_VARIABLE
from octavo_runtime.domain import EngineConfig, SamplingParams, ScheduledSequence, StepPlan
from octavo_runtime.engine.executor import load_executor
from octavo_runtime.engine.torch_executor import TorchExecutor
from octavo_runtime.loading.spec import read_spec


def test_main_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main([]) == 2
    assert "torch finds no usable GPU" in (told := capsys.readouterr().err)
    assert "--dry-run" in told


def test_main_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert program.main(["kernels"]) == 2
    assert "compute capability 7.5" in capsys.readouterr().err


def test_main_in_the_interpreter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert program.main([]) == 2
    assert "TRITON_INTERPRET is set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("python", "why"), [("/nowhere/python", "needs Python 3.11 or later"), ("/bin/false", "needs Python 3.11 or later")]
)
def test_script_without_a_python(python: str, why: str) -> None:
    script = Path(program.__file__).parents[1] / "gpu.sh"
    ended = subprocess.run(
        [str(script)], env={"PATH": os.environ["PATH"], "PYTHON": python}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert why in ended.stderr
    assert python in ended.stderr


def test_script_without_a_package(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *find_spec*triton*) exit 1;; *print*) echo /its/python;; esac\n')
    python.chmod(0o755)
    script = Path(program.__file__).parents[1] / "gpu.sh"
    ended = subprocess.run(
        [str(script)],
        env={"PATH": os.environ["PATH"], "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "/its/python has no triton" in ended.stderr


def test_script_without_a_home(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *bench.gpu*) echo "$TRITON_CACHE_DIR";; esac\n')
    python.chmod(0o755)
    script = Path(program.__file__).parents[1] / "gpu.sh"
    (tmp_path / "file").touch()
    for home, chosen in ((tmp_path, ""), (tmp_path / "file", str(tmp_path / "octavo-triton-"))):
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(python), "HOME": str(home), "TMPDIR": str(tmp_path)}
        ended = subprocess.run([str(script)], env=environment, capture_output=True, text=True, check=True)
        assert ended.stdout.strip().startswith(chosen)
        assert bool(chosen) == ("cannot be written" in ended.stderr)


def test_main_unknown_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["kernel", "--dry-run"])
    assert ended.value.code == 2
    assert "there is no part kernel; there are numerics, kernels" in capsys.readouterr().err


def test_main_keeps_what_parts_found_until_they_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    class Process:
        """A part's: engine crashes, one of numerics never ends, the others find something."""

        def __init__(self, command: list[str], *, env: dict[str, str]) -> None:
            self.name, folder = command[3], Path(command[4])
            started.append(self.name)
            assert env["TRITON_INTERPRET"] == "1"
            if self.name == "engine":
                return
            results = Results(folder / f"{self.name}.json")
            if self.name == "host":
                results.add({"host_us_1": 151, "graphs_equal_tokens_1": 1.0})
            else:
                results.add({f"{self.name}_error": 0.001})

        def wait(self, timeout: float | None = None) -> int:
            if self.name == "numerics-fp16" and timeout is not None:
                raise subprocess.TimeoutExpired(self.name, timeout)
            return -11 if self.name == "engine" else 0

        def kill(self) -> None:
            ended.append(self.name)

    ended: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", Process)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, stdout="abc"))
    monkeypatch.setenv("OUT", str(tmp_path))
    assert program.main(["host", "engine", "numerics", "--dry-run"]) == 1
    assert started == ended == ["numerics-bf16", "numerics-fp16", "engine", "host"]
    found = json.loads((tmp_path / "gpu-dry-run.json").read_text())
    assert found == json.loads(capsys.readouterr().out)
    assert found["figures"] == {
        "numerics-bf16_error": 0.001,
        "numerics-fp16_error": 0.001,
        "host_us_1": 151,
        "graphs_equal_tokens_1": 1,
    }
    assert found["faults"] == ["numerics: stopped after 300 s", "engine: ended with exit code -11"]
    assert found["judged"] == {
        "host_us_1": "host_us_1 151, target ≤ 150: NOT met",
        "graphs_equal_tokens_1": "graphs_equal_tokens_1 1, target ≥ 1: met",
    }


def test_results_are_whole_after_each_figure(tmp_path: Path) -> None:
    path = tmp_path / "part.json"
    assert read(path)["figures"] == {}
    results = Results(path)
    for number in range(3):
        results.add({f"figure_{number}": number})
        assert read(path)["figures"] == {f"figure_{place}": place for place in range(number + 1)}
    results.fault("something")
    assert read(path)["faults"] == ["something"]


class Limits:
    """A device that moves so many bytes and computes so many operations in a second."""

    def __init__(self, bandwidth: float, peak: float) -> None:
        self.bandwidth = bandwidth
        self.peak = peak


@pytest.mark.parametrize("slow", ["memory", "arithmetic"])
def test_roofline(slow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path / "model", dry=True, device=torch.device("cpu"))
    config = EngineConfig(str(model), device="cpu", kv_cache_memory=1 << 20)
    layer = 64 * 256 + 64 * 128 + 2 * 64 * 64 + 64 * 64 + 2 * 64 + 2 * 64 + 64  # qkv, output, gate and up, down, norms
    head = 200 * 64
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "cpu")
    executor = load_executor(config)
    assert isinstance(executor, TorchExecutor)
    loaded = _Loaded(executor, config, read_spec(model), layer + head)

    def sequence(tokens: int, computed: int, samples: int) -> ScheduledSequence:
        return ScheduledSequence("a", 0, (3,) * tokens, computed, (0, 1), samples, 0, SamplingParams(seed=0))

    step = _Step(StepPlan((sequence(5, 10, 0), sequence(1, 20, 1))), 0, 0)
    weights, kv = (layer + head) * 4, 36 * 2 * 64 * 4
    if slow == "memory":
        assert loaded.roofline(step, Limits(100.0, 1e30)) == pytest.approx((weights + kv) / 100)  # type: ignore[arg-type]
    else:
        operations = 2 * (6 * layer + head)
        assert loaded.roofline(step, Limits(1e30, 100.0)) == pytest.approx(operations / 100)  # type: ignore[arg-type]
