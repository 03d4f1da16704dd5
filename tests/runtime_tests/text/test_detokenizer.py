"""The pieces of text are the whole text, and no piece ends in half a character."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models

from octavo_runtime.testing import EOS, byte_level_tokenizer, ids, write_model
from octavo_runtime.text.detokenizer import Detokenizer
from octavo_runtime.text.tokenizer import Tokenizer

FAMILY = "👩‍👩‍👧"


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_model(tmp_path_factory.mktemp("byte-level")))


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As SentencePiece models: words with ▁ for the space, single bytes for all else, first space stripped."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁na", "ï", "ve"]
    rust = RustTokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[], byte_fallback=True))
    rust.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    folder = tmp_path_factory.mktemp("byte-fallback")
    rust.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def pieces(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, token_ids), detokenizer.flush()]


@given(st.lists(st.integers(0, 300), max_size=200))
def test_push_any_tokens_give_the_full_decode(byte_level: Tokenizer, token_ids: list[int]) -> None:
    # 257 to 300 are unknown, EOS is special: both are without text wherever they stand.
    assert "".join(pieces(byte_level, token_ids)) == byte_level.decode(token_ids)


@given(st.text(max_size=60))
def test_push_text_never_shows_half_a_character(byte_level: Tokenizer, text: str) -> None:
    shown = pieces(byte_level, list(ids(text)))
    assert "".join(shown) == text
    assert all("\ufffd" not in piece for piece in shown) or "\ufffd" in text


@given(st.lists(st.sampled_from(["a", "é", "€", "😀", FAMILY, " "]), max_size=30))
def test_push_shows_each_character_at_once(byte_level: Tokenizer, chars: list[str]) -> None:
    detokenizer = Detokenizer(byte_level)
    for char in "".join(chars):
        shown = [detokenizer.push(token_id) for token_id in ids(char)]
        assert "".join(shown) == char
        assert shown[-1] == char, "a whole character was held back"


@given(st.lists(st.integers(257, 262), max_size=40))
def test_push_words_keep_their_spaces(byte_fallback: Tokenizer, token_ids: list[int]) -> None:
    assert "".join(pieces(byte_fallback, token_ids)) == byte_fallback.decode(token_ids)


@given(st.lists(st.sampled_from(["é", "€", "😀", "\x07"]), max_size=20))
def test_push_fallback_bytes_of_text(byte_fallback: Tokenizer, chars: list[str]) -> None:
    token_ids = [byte + 1 for byte in "".join(chars).encode()]
    assert "".join(pieces(byte_fallback, token_ids)) == "".join(chars)


@given(st.lists(st.integers(0, 262), max_size=100))
def test_push_fallback_bytes_of_anything_never_raise(byte_fallback: Tokenizer, token_ids: list[int]) -> None:
    # Valid characters in a run of bytes that ends badly stay as shown, where the full decode takes them back.
    whole = "".join(pieces(byte_fallback, token_ids))
    assert len(whole.replace("\ufffd", "")) >= len(byte_fallback.decode(token_ids).replace("\ufffd", ""))


def test_flush_half_a_character_is_one_replacement(byte_level: Tokenizer) -> None:
    assert pieces(byte_level, list("a😀".encode()[:-1])) == ["a", "", "", "", "\ufffd"]


def test_push_special_token_between_bytes_of_a_character(byte_level: Tokenizer) -> None:
    euro = list("€".encode())
    assert pieces(byte_level, [euro[0], EOS, *euro[1:]]) == ["", "", "", "€", ""]


def test_push_endless_garbage_keeps_the_window_small(byte_level: Tokenizer) -> None:
    detokenizer = Detokenizer(byte_level)
    shown = "".join(detokenizer.push(0x80) for _ in range(5000)) + detokenizer.flush()
    assert shown == "\ufffd" * 5000
    assert len(detokenizer._window) <= 65


def test_push_a_replacement_that_the_model_means(byte_level: Tokenizer) -> None:
    text = "\ufffd\ufffd\ufffd\ufffd\ufffd x"
    assert "".join(pieces(byte_level, list(ids(text)))) == text


def test_byte_level_tokenizer_has_one_token_per_byte() -> None:
    assert byte_level_tokenizer().encode(FAMILY).ids == list(FAMILY.encode())


def test_tokenizer_ignores_the_truncation_of_its_training(tmp_path: Path) -> None:
    rust = byte_level_tokenizer()
    rust.enable_truncation(max_length=3)
    rust.enable_padding(length=20)
    rust.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path).encode("hello") == list(b"hello")
