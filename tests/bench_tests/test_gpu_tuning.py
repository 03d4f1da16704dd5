"""What bench/gpu.sh tune makes of times, with a stand-in for the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.gpu import tuning
from bench.gpu.results import Results, read
from octavo_kernels.gpu import KernelFailed
from octavo_kernels.paged_attention import gpu_configurations as tables

LINE = (80, 128)  # a CPU's target


class Machine:
    """A device on which each candidate takes the time that the test gives; 1 s where it gives none."""

    dry = False
    device = torch.device("cpu")

    def __init__(self, phase: str, seconds: dict[tuple[int, ...], float]) -> None:
        self._table = tables.DECODE if phase == "decode" else tables.PREFILL
        self._seconds = seconds

    def seconds(self, _works: Sequence[Callable[[], object]]) -> float:
        taken = self._seconds.get(self._table[LINE], 1.0)
        if taken < 0:
            raise KernelFailed("it does not compile")
        return taken


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def tune(
        phase: str, seconds: dict[tuple[int, ...], float], wrong: Sequence[tuple[int, ...]] = ()
    ) -> dict[str, Any]:
        before = dict(tables.DECODE), dict(tables.PREFILL)

        def faults(*_: object) -> list[str]:
            return ["it spills"] if (tables.DECODE if phase == "decode" else tables.PREFILL)[LINE] in wrong else []

        monkeypatch.setattr(tuning, "compile_ahead", lambda *_: None)
        monkeypatch.setattr(tuning, "faults", faults)
        monkeypatch.setattr(tuning, "_work", lambda *_: None)
        machine: Any = Machine(phase, seconds)
        tuning._tune(machine, Results(tmp_path / "tune.json"), phase, tables.Shape(128, 4, 16))
        assert before == (tables.DECODE, tables.PREFILL), "nothing is changed"
        return read(tmp_path / "tune.json")

    return tune


def test_the_quickest_wins(tuned: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    found = tuned("decode", {(64, 4, 3): 0.5, (128, 4, 3): 0.4}, wrong=[(128, 4, 3)])
    assert found["figures"] == {"tuned_decode_d128_us": 5e5, "shipped_decode_d128_us": 1e6}
    assert found["facts"]["tuned decode_d128"]["(128, 4, 3)"] == 4e5
    assert found["facts"]["tuned decode_d128"]["wrong"] == 1
    assert "(80, 128): (64, 4, 3),  # of decode; in the table: (32, 4, 4)" in capsys.readouterr().err


def test_what_is_hardly_quicker_does_not(tuned: Callable[..., dict[str, Any]]) -> None:
    found = tuned("prefill", {(128, 64, 8, 2): 0.99})
    assert found["figures"]["tuned_prefill_d128_us"] == 1e6


def test_what_does_not_compile_is_left_out(tuned: Callable[..., dict[str, Any]]) -> None:
    found = tuned("decode", {(64, 4, 3): -1})
    assert found["figures"]["tuned_decode_d128_us"] == 1e6
    assert "(64, 4, 3)" not in found["facts"]["tuned decode_d128"]
    assert found["facts"]["tuned decode_d128"]["wrong"] == 1


def test_candidates_suit_the_kernels() -> None:
    for _, tile_kv, _, _ in tuning._PREFILLS:
        assert tile_kv % 16 == 0
    assert all(tables.MIN_PIECE % tile_kv == 0 for tile_kv, _, _ in tuning._DECODES)
