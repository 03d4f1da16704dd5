from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.errors import UnsupportedModel
from octavo_runtime.loading.spec import DecoderSpec, decoder_spec
from octavo_runtime.loading.token_ids import TokenIds, read_token_ids

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "max_position_embeddings": 8,
    "vocab_size": 20,
}


def spec(**changes: Any) -> DecoderSpec:
    return replace(decoder_spec(CONFIG), **changes)


def write(directory: Path, **files: Any) -> None:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))


def tokenizer(vocab: Any, added: list[tuple[str, int]]) -> dict[str, Any]:
    return {"model": {"vocab": vocab}, "added_tokens": [{"content": token, "id": number} for token, number in added]}


def test_read_token_ids_union(tmp_path: Path) -> None:
    # Each of the three places knows one the others do not.
    write(
        tmp_path,
        generation_config={"eos_token_id": [3, 4]},
        tokenizer=tokenizer({"a": 0, "b": 1}, [("</s>", 5)]),
        tokenizer_config={"eos_token": {"content": "</s>", "special": True}},
    )
    assert read_token_ids(tmp_path, spec(eos_token_ids=(2,))) == TokenIds(6, (2, 3, 4, 5))


def test_read_token_ids_padded_embedding(tmp_path: Path) -> None:
    write(tmp_path, tokenizer=tokenizer({"a": 0, "b": 1}, [("<x>", 9)]), tokenizer_config={"eos_token": "<x>"})
    assert read_token_ids(tmp_path, spec()) == TokenIds(10, (9,))


def test_read_token_ids_tokenizer_beyond_the_embedding(tmp_path: Path) -> None:
    write(tmp_path, tokenizer=tokenizer({"a": 0}, [("<x>", 31)]), generation_config={"eos_token_id": 31})
    assert read_token_ids(tmp_path, spec()) == TokenIds(20, ())


def test_read_token_ids_unigram(tmp_path: Path) -> None:
    write(tmp_path, tokenizer=tokenizer([["<unk>", 0.0], ["</s>", 0.0], ["a", -2.5]], []))
    write(tmp_path, tokenizer_config={"eos_token": "</s>"})
    assert read_token_ids(tmp_path, spec()) == TokenIds(3, (1,))


def test_read_token_ids_without_files(tmp_path: Path) -> None:
    assert read_token_ids(tmp_path, spec(eos_token_ids=(7,))) == TokenIds(20, (7,))


def test_read_token_ids_damaged(tmp_path: Path) -> None:
    write(tmp_path, tokenizer={"model": {}})
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json is not a tokenizer\.json that Octavo reads"):
        read_token_ids(tmp_path, spec())
