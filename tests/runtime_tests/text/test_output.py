"""Events to deltas: stop strings, stop tokens and counts."""

import pytest

from octavo_runtime.domain import Event, FinishReason, SamplingParams
from octavo_runtime.testing import EOS, ids, write_model
from octavo_runtime.text.output import Delta, OutputText
from octavo_runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_model(tmp_path_factory.mktemp("model")))


def tokens(text: str, **end: object) -> Event:
    return Event("r", ids(text), **end)  # type: ignore[arg-type] # a shorthand


def test_push_end_of_sequence_counts_and_has_no_text(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, SamplingParams())
    event = Event("r", (*ids("a"), EOS), FinishReason.STOP, stop_token_id=EOS)
    assert output.push(event) == Delta("a", (97, EOS), FinishReason.STOP)


def test_push_stop_token_is_named_and_has_no_text(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, SamplingParams(stop_token_ids=(33,)))
    event = Event("r", ids("!!")[:1], FinishReason.STOP, stop_token_id=33)
    assert output.push(event) == Delta("", (33,), FinishReason.STOP, stop_reason=33)


def test_push_ignored_stop_token_is_text(tokenizer: Tokenizer) -> None:
    assert OutputText(tokenizer, SamplingParams()).push(tokens("a!")).text == "a!"


def test_push_stop_string_ends_before_the_event_does(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, SamplingParams(stop=("lo",)))
    assert output.push(tokens("hel")) == Delta("he", ids("hel"))
    assert output.push(tokens("lo wor")) == Delta("l", ids("lo"), FinishReason.STOP, stop_reason="lo")


def test_push_stop_string_wins_over_length_on_the_same_token(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, SamplingParams(stop=("b",)))
    delta = output.push(tokens("ab", finish_reason=FinishReason.LENGTH))
    assert (delta.text, delta.finish_reason, delta.stop_reason) == ("a", FinishReason.STOP, "b")


def test_push_last_event_flushes_prefix_and_half_character(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, SamplingParams(stop=("END",)))
    event = Event("r", (*ids("xEN"), 0xE2), FinishReason.LENGTH)
    assert output.push(event) == Delta("xEN\ufffd", (*ids("xEN"), 0xE2), FinishReason.LENGTH)


def test_push_stop_string_found_in_the_flush(tokenizer: Tokenizer) -> None:
    output = OutputText(tokenizer, SamplingParams(stop=("\ufffd",)))
    delta = output.push(Event("r", (97, 0xE2), FinishReason.LENGTH))
    assert (delta.text, delta.finish_reason) == ("a", FinishReason.STOP)


def test_push_error_keeps_its_sentence(tokenizer: Tokenizer) -> None:
    delta = OutputText(tokenizer, SamplingParams()).push(Event("r", finish_reason=FinishReason.ERROR, error="why"))
    assert delta == Delta("", (), FinishReason.ERROR, error="why")
