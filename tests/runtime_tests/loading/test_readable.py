"""A model whose files may not be read: each is told by its name, with the user who should read it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from octavo_runtime.cli import run
from octavo_runtime.errors import BadWeights, ModelNotFound, StartError
from octavo_runtime.loading.checkpoint import open_checkpoint
from octavo_runtime.loading.spec import decoder_spec, read_spec
from octavo_runtime.loading.token_ids import read_token_ids
from octavo_runtime.testing import write_model
from octavo_runtime.text.sampling_defaults import sampling_defaults
from octavo_runtime.text.tokenizer import Tokenizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 10,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 6,
    "max_position_embeddings": 32,
}


def token_ids(model: Path) -> object:
    return read_token_ids(model, decoder_spec(CONFIG))


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of files that nobody may read; root may read all, so that it is played."""
    names: set[str] = set()
    opens = Path.open

    def open_(self: Path, *given: Any, **named: Any) -> IO[Any]:
        if self.name in names:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        opened: IO[Any] = opens(self, *given, **named)
        return opened

    monkeypatch.setattr(Path, "open", open_)
    return names


@pytest.mark.parametrize(
    ("read", "name", "kind"),
    [
        (read_spec, "config.json", ModelNotFound),
        (open_checkpoint, "model.safetensors", BadWeights),
        (open_checkpoint, "model.safetensors.index.json", BadWeights),
        (token_ids, "tokenizer.json", ModelNotFound),
        (token_ids, "tokenizer_config.json", ModelNotFound),
        (token_ids, "generation_config.json", ModelNotFound),
        (Tokenizer, "tokenizer.json", ModelNotFound),
        (Tokenizer, "tokenizer_config.json", ModelNotFound),
        (Tokenizer, "chat_template.jinja", ModelNotFound),
        (sampling_defaults, "generation_config.json", ModelNotFound),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_file_that_may_not_be_read(
    read: Callable[[Path], object], name: str, kind: type[StartError], tmp_path: Path, forbidden: set[str]
) -> None:
    model = write_model(tmp_path)
    (model / name).touch()
    forbidden.add(name)
    with pytest.raises(kind) as caught:
        read(model)
    assert caught.value.message == f"{model / name} cannot be read: Permission denied"
    assert f"the user with id {os.geteuid()}" in caught.value.hint


def test_command_tells_no_fault_of_ours(
    tmp_path: Path, forbidden: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path)
    forbidden.add("config.json")
    assert run(["plan", str(model)]) == 10
    told = capsys.readouterr().err
    assert "Permission denied" in told
    assert "Traceback" not in told


def test_directory_with_a_name_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="File name too long"):
        Tokenizer(tmp_path / ("n" * 300))


def test_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=f"there is no directory {tmp_path}/none"):
        Tokenizer(tmp_path / "none")
    with pytest.raises(ModelNotFound, match=f"there is no tokenizer.json in {tmp_path}"):
        Tokenizer(tmp_path)
