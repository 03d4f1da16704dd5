"""POST /v1/completions, on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from octavo_runtime.testing import ids

if TYPE_CHECKING:
    from tests.runtime_tests.server.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/completions"


async def test_completions_whole(served: Served) -> None:
    status, body = await served.post(PATH, model="tiny", prompt="hi", max_tokens=8)
    assert status == 200
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "tiny",
        "choices": [{"index": 0, "text": "Hello, w", "logprobs": None, "finish_reason": "length", "stop_reason": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 8,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_completions_default_is_sixteen_tokens(served: Served) -> None:
    _, body = await served.post(PATH, prompt="hi")
    assert body["usage"]["completion_tokens"] == 16


async def test_completions_stream_by_the_letter(served: Served) -> None:
    events = await served.events(PATH, prompt="hi", max_tokens=18)
    *chunks, done = events
    assert done == "[DONE]"
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "Hello, wörld 😀"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    ends = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert ends == [None] * (len(chunks) - 1) + ["length"]


async def test_completions_stream_headers(served: Served) -> None:
    async with served.http.post(PATH, json={"prompt": "hi", "stream": True, "max_tokens": 1}) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["X-Accel-Buffering"] == "no"
        await answer.read()


async def test_completions_stream_usage_is_last_and_equals_that_of_the_whole(served: Served) -> None:
    request: dict[str, Any] = {"prompt": "usage twice", "max_tokens": 9, "stop": "l"}
    events = await served.events(PATH, **request, stream_options={"include_usage": True})
    *chunks, last, _ = events
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    _, whole = await served.post(PATH, **request)
    assert last["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 3
    assert whole["choices"][0]["text"] == "He"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["choices"][0]["stop_reason"] == "l"


async def test_completions_token_ids_are_one_prompt(served: Served) -> None:
    _, body = await served.post(PATH, prompt=[1 + 64, 2 + 64], max_tokens=1)
    assert body["usage"]["prompt_tokens"] == 2
    assert len(body["choices"]) == 1


@pytest.mark.parametrize("prompts", [["a", "bcd", "ef"], [[70], [71, 72, 73], [74, 75]]], ids=["texts", "token ids"])
async def test_completions_several_prompts_several_choices(served: Served, prompts: list[Any]) -> None:
    _, whole = await served.post(PATH, prompt=prompts, max_tokens=5)
    assert [(c["index"], c["text"]) for c in whole["choices"]] == [(0, "Hello"), (1, "Hello"), (2, "Hello")]
    assert whole["usage"]["prompt_tokens"] == 6
    assert whole["usage"]["completion_tokens"] == 15
    *chunks, last, _ = await served.events(PATH, prompt=prompts, max_tokens=5, stream_options={"include_usage": True})
    assert last["usage"] == whole["usage"]
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "Hello"
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]


async def test_completions_stop_string_across_tokens_is_not_shown(served: Served) -> None:
    events = await served.events(PATH, prompt="hi", max_tokens=30, stop=["wörld", "nothing"])
    text = "".join(chunk["choices"][0]["text"] for chunk in events[:-1])
    assert text == "Hello, "
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


async def test_completions_stop_token(served: Served) -> None:
    _, body = await served.post(PATH, prompt="hi", max_tokens=30, stop_token_ids=[ord(",")])
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello", "stop", ord(","))
    assert body["usage"]["completion_tokens"] == 6


async def test_completions_prefix_cache_is_told(served: Served) -> None:
    prompt = list(ids("a prompt of more than one block of sixteen"))
    await served.post(PATH, prompt=prompt, max_tokens=1)
    _, body = await served.post(PATH, prompt=prompt, max_tokens=1)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


async def test_completions_failed_request_is_its_own(served: Served) -> None:
    status, body = await served.post(PATH, prompt=[1], max_tokens=4)
    assert status == 500
    assert body["error"] == {
        "message": "the logits are not finite",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    events = await served.events(PATH, prompt=[1], max_tokens=4)
    assert [set(event) for event in events] == [{"error"}], "an error event and no [DONE]"
    status, _ = await served.post(PATH, prompt="hi", max_tokens=4)
    assert status == 200


async def test_completions_long_text_is_tokenised_beside_the_loop(served: Served) -> None:
    status, body = await served.post(PATH, prompt="x" * 5000, max_tokens=1)
    assert status == 400
    assert "5000 tokens" in body["error"]["message"]
    assert body["error"]["code"] == "context_length_exceeded"


async def test_completions_model_may_be_left_out(served: Served) -> None:
    status, body = await served.post(PATH, prompt="hi", model=None)
    assert (status, body["model"]) == (200, "tiny")


async def test_completions_n_answers_for_each_prompt(served: Served) -> None:
    request: dict[str, Any] = {"prompt": ["a", "bcd"], "n": 3, "max_tokens": 5}
    _, whole = await served.post(PATH, **request)
    assert [(c["index"], c["text"]) for c in whole["choices"]] == [(index, "Hello") for index in range(6)]
    assert whole["usage"]["prompt_tokens"] == 4, "a prompt counts once"
    assert whole["usage"]["completion_tokens"] == 30


async def test_completions_n_streamed_ends_each_choice_once(served: Served) -> None:
    request: dict[str, Any] = {"prompt": ["a", "bcd"], "n": 2, "max_tokens": 18}
    *chunks, last, done = await served.events(PATH, **request, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert last["choices"] == []
    for index in range(4):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "Hello, wörld 😀"
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]
    _, whole = await served.post(PATH, **request)
    assert last["usage"] == whole["usage"]


async def test_completions_n_with_a_stop_string(served: Served) -> None:
    _, body = await served.post(PATH, prompt="hi", n=3, max_tokens=30, stop="wör")
    assert [(c["text"], c["finish_reason"], c["stop_reason"]) for c in body["choices"]] == [
        ("Hello, ", "stop", "wör")
    ] * 3
    assert body["usage"]["completion_tokens"] == 3 * len("Hello, wör".encode())


async def test_completions_best_of(served: Served) -> None:
    _, body = await served.post(PATH, prompt="hi", n=2, best_of=4, max_tokens=5)
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "Hello", "length"),
        (1, "Hello", "length"),
    ]
    assert body["usage"]["completion_tokens"] == 10


async def test_completions_best_of_equal_to_n_streams(served: Served) -> None:
    *chunks, _ = await served.events(PATH, prompt="hi", n=2, best_of=2, max_tokens=1)
    assert {chunk["choices"][0]["index"] for chunk in chunks} == {0, 1}


async def test_completions_beam_search(served: Served) -> None:
    _, body = await served.post(
        PATH, prompt="hi", n=2, best_of=3, use_beam_search=True, max_tokens=4, length_penalty=0.5, early_stopping=True
    )
    first, second = body["choices"]
    assert first["text"] == "Hell", "the best token of each step"
    assert second["text"] != first["text"]
    assert [first["finish_reason"], second["finish_reason"]] == ["length", "length"]
    assert body["usage"]["completion_tokens"] == 8


async def test_completions_n_of_which_one_fails_fails(served: Served) -> None:
    status, body = await served.post(PATH, prompt=[1], n=3, max_tokens=4)
    assert (status, body["error"]["message"]) == (500, "the logits are not finite")
    events = await served.events(PATH, prompt=[1], n=3, max_tokens=4)
    assert [set(event) for event in events] == [{"error"}]


async def test_completions_cache_salt_keeps_prompts_apart(served: Served) -> None:
    prompt = list(ids("another prompt of more than two blocks of sixteen"))
    cached = []
    for salt in ("mine", "mine", "yours", None):
        _, body = await served.post(PATH, prompt=prompt, max_tokens=1, cache_salt=salt)
        cached.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 48, 0, 0]
