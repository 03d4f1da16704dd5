"""POST /v1/chat/completions, on the wire and through the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import openai
import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from tests.runtime_tests.server.conftest import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(served: Served) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_chat_whole(served: Served) -> None:
    status, body = await served.post(PATH, messages=HI, max_tokens=5)
    assert status == 200
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    assert body["usage"]["prompt_tokens"] == len("user: hi\nassistant: ")


async def test_chat_stream_by_the_letter(served: Served) -> None:
    *chunks, done = await served.events(PATH, messages=HI, max_tokens=5)
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == "Hello"
    assert deltas[-1] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_chat_default_length_is_what_the_context_leaves(served: Served) -> None:
    _, body = await served.post(PATH, messages=HI)
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


async def test_chat_newer_name_of_the_limit_wins(served: Served) -> None:
    _, body = await served.post(PATH, messages=HI, max_tokens=9, max_completion_tokens=3)
    assert body["usage"]["completion_tokens"] == 3


async def test_chat_text_parts_and_developer_role(served: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    status, body = await served.post(
        PATH, messages=[{"role": "developer", "content": "c"}, {"role": "user", "content": parts}], max_tokens=1
    )
    assert status == 200
    assert body["usage"]["prompt_tokens"] == len("system: c\nuser: ab\nassistant: ")


async def test_openai_client_whole(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], max_completion_tokens=5, user="me", store=False
    )
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


async def test_openai_client_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=18,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello, wörld 😀"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 18


async def test_openai_client_completions(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["Hello", "Hello"]


async def test_openai_client_two_answers(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], n=2, max_completion_tokens=5
    )
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "Hello"), (1, "Hello")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 10
    assert answer.usage.prompt_tokens == len("user: hi\nassistant: ")


async def test_openai_client_two_answers_streamed(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        n=2,
        max_completion_tokens=18,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    for index in range(2):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert mine[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in mine) == "Hello, wörld 😀"
        assert [choice.finish_reason for choice in mine if choice.finish_reason] == ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 36


async def test_openai_client_beam_search(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="tiny", prompt="a", n=2, best_of=4, max_tokens=4, extra_body={"use_beam_search": True}
    )
    assert answer.choices[0].text == "Hell"
    assert len(answer.choices) == 2


async def test_openai_client_errors_are_its_own(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.completions.create(model="tiny", prompt="a", n=65)
    assert wrong.value.param == "n"
    with pytest.raises(openai.APIError):  # an error event in the middle of a stream
        async for _ in await client.completions.create(model="tiny", prompt=[1], stream=True):
            pass


async def test_openai_client_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["tiny"]
    model = await client.models.retrieve("tiny")
    assert model.model_extra is not None
    assert model.model_extra["max_model_len"] == 512
