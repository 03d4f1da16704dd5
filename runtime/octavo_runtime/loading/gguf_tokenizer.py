"""The tokenizer inside a GGUF file, as the Hugging Face files: tokenizer.json and tokenizer_config.json.

GGUF keeps tokens, kinds and merges, and only the *name* of how text is cut into words before the merges. What a name
means is written here; one that is not known is refused, since cutting otherwise gives other tokens than the model was
trained on, and nobody would notice.
"""

from __future__ import annotations

from typing import Any

from octavo_runtime.errors import UnsupportedModel

__all__ = ["tokenizer_files"]

_CONTROL, _USER_DEFINED = 3, 4  # kinds of token in GGUF's tokenizer.ggml.token_type

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(use_regex=False)]


# tokenizer.ggml.pre: the cutting into words, in tokenizer.json's terms
_PRE_TOKENIZERS = {
    "default": [_byte_level(use_regex=True)],
    "gpt-2": [_byte_level(use_regex=True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
    "llama-bpe": _split(_WORDS % r"\p{N}{1,3}"),
    "qwen2": _split(_WORDS % r"\p{N}"),
}
_NORMALISED = {"qwen2"}  # Unicode NFC first
_WHOLE_WORDS_FIRST = {"llama-bpe"}  # a word that is a token is taken without merging


def tokenizer_files(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json.

    Args:
        fields: The file's metadata.

    Raises:
        UnsupportedModel: A kind of tokenizer, or a cutting into words, that is not known.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {kind!r}; only byte-level BPE ('gpt2') can be converted",
            hint="Serve the model's original Hugging Face directory: Octavo reads it as it is.",
        )
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {pre!r}; known are {', '.join(_PRE_TOKENIZERS)}",
            hint="Serve the model's original Hugging Face directory: Octavo reads it as it is.",
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    special = {
        name: tokens[fields[f"tokenizer.ggml.{key}"]]
        for name, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
        if f"tokenizer.ggml.{key}" in fields
    }
    add_bos = fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kinds[number] == _CONTROL,
            }
            for number, token in enumerate(tokens)
            if kinds[number] in {_CONTROL, _USER_DEFINED}
        ],
        "normalizer": {"type": "NFC"} if pre in _NORMALISED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
        "post_processor": _begin_with(special["bos_token"], tokens) if add_bos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields[f"{fields['general.architecture']}.context_length"],
        **special,
    }
    if "tokenizer.chat_template" in fields:
        config["chat_template"] = fields["tokenizer.chat_template"]
    return tokenizer, config


def _begin_with(token: str, tokens: list[str]) -> dict[str, Any]:
    """A post-processor that puts `token` in front."""
    number = tokens.index(token)
    begin = {"SpecialToken": {"id": token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]}},
    }
