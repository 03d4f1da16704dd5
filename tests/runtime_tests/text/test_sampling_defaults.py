"""What generation_config.json recommends, and what it gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.errors import UnsupportedModel
from octavo_runtime.text.sampling_defaults import sampling_defaults


def defaults(folder: Path, **config: Any) -> dict[str, Any]:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return sampling_defaults(folder)


def test_sampling_defaults_without_a_file(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}


def test_sampling_defaults_of_a_usual_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"bos_token_id": 1, "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": None}
    assert defaults(tmp_path, **config, repetition_penalty=1.0) == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert not caplog.records


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"temperature": 3}, "temperature must be between 0 and 2, not 3; it is ignored"),
        ({"top_p": "0.9"}, "top_p must be a number, not '0.9'; it is ignored"),
        ({"top_k": 1.5}, "top_k must be a number, not 1.5"),
        ({"top_k": True}, "top_k must be a number, not True"),
        ({"repetition_penalty": 1.05}, "repetition_penalty is not supported and is ignored"),
    ],
)
def test_sampling_defaults_that_make_no_sense_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, Any], said: str
) -> None:
    assert defaults(tmp_path, **config, min_p=0.1) == {"min_p": 0.1}
    assert said in caplog.text


def test_sampling_defaults_of_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"generation_config\.json cannot be read"):
        sampling_defaults(tmp_path)
