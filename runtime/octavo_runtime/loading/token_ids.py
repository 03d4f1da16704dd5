"""What the engine must know of the tokenizer: how many ids there are, and which end a sequence. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_runtime.errors import ModelNotFound, UnsupportedModel, readable
from octavo_runtime.loading.spec import DecoderSpec, read_json, token_ids

__all__ = ["TokenIds", "read_token_ids"]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Facts about token ids.

    Attributes:
        vocab_size: Ids that both the tokenizer and the model know: those below.
        eos: Ids that end a sequence.
    """

    vocab_size: int
    eos: tuple[int, ...]


@readable(ModelNotFound)
def read_token_ids(directory: Path, spec: DecoderSpec) -> TokenIds:
    """Reads tokenizer.json, tokenizer_config.json and generation_config.json, each where it exists.

    Checkpoints name the end of sequence in any of generation_config.json, config.json and the tokenizer, often in one
    alone, so that the union of the three is the only safe reading. An embedding is often padded beyond the tokenizer;
    ids of the padding mean nothing and are never to be sampled.

    Raises:
        UnsupportedModel: A file is damaged.
        ModelNotFound: A file cannot be read.
    """
    vocabulary = _vocabulary(directory / "tokenizer.json")
    eos = set(spec.eos_token_ids)
    if (path := directory / "generation_config.json").is_file():
        eos.update(token_ids(read_json(path).get("eos_token_id")))
    if (path := directory / "tokenizer_config.json").is_file():
        token = read_json(path).get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if token in vocabulary:
            eos.add(vocabulary[token])
    vocab_size = min(spec.vocab_size, max(vocabulary.values()) + 1) if vocabulary else spec.vocab_size
    return TokenIds(vocab_size, tuple(sorted(token for token in eos if token < vocab_size)))


def _vocabulary(path: Path) -> dict[str, int]:
    """Token to id, added tokens included; empty when there is no such file."""
    if not path.is_file():
        return {}
    tokenizer = read_json(path)
    try:
        vocab: Any = tokenizer["model"]["vocab"]
        # Unigram has a list of pairs of token and score, in order of id; all others have a table.
        tokens = {pair[0]: number for number, pair in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
        tokens.update((added["content"], added["id"]) for added in tokenizer.get("added_tokens") or [])
    except (KeyError, TypeError, IndexError) as error:
        raise UnsupportedModel(f"{path} is not a tokenizer.json that Octavo reads: {error!r}") from error
    return tokens
