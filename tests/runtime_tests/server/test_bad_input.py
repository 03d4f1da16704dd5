"""What is wrong is refused by name and number in OpenAI's shape, and everybody else keeps streaming."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from octavo_runtime.testing import Script, ids

if TYPE_CHECKING:
    from tests.runtime_tests.server.conftest import Serve, Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]

# Body, beside a prompt that is fine; what the message says; the field it names; OpenAI's code.
COMPLETION_FIELDS: list[tuple[dict[str, Any], str, str | None, str | None]] = [
    ({"max_tokenz": 1}, "unknown field max_tokenz; did you mean max_tokens", "max_tokenz", "unknown_parameter"),
    ({"foo": None}, "unknown field foo", "foo", "unknown_parameter"),
    ({"n": 0}, "n must be 1 or more, not 0", "n", None),
    ({"n": True}, "Expected `int | null`, got `bool`", "n", None),
    ({"n": 65}, "n asks for 65 sequences; this server runs 64 at once", "n", None),
    ({"n": 10**30}, "n asks for 1000", "n", None),
    ({"n": 3, "best_of": 2}, r"best_of must be n \(3\) or more, not 2", "best_of", None),
    ({"best_of": 65}, "best_of asks for 65 sequences", "best_of", None),
    ({"best_of": 2, "stream": True}, "cannot be streamed", "best_of", None),
    ({"best_of": 2, "stop": "x"}, "takes no stop strings", "stop", None),
    ({"use_beam_search": True}, "best_of .or n. of 2 or more", "best_of", None),
    ({"use_beam_search": True, "n": 2, "stream": True}, "cannot be streamed", "use_beam_search", None),
    ({"use_beam_search": True, "n": 2, "temperature": 0.5}, "temperature has no meaning", "temperature", None),
    ({"use_beam_search": True, "n": 2, "stop": "x"}, "takes no stop strings", "stop", None),
    ({"use_beam_search": 1}, "Expected `bool | null`", "use_beam_search", None),
    (
        {"use_beam_search": True, "n": 2, "stop_token_ids": list(range(65))},
        "65 ids; beam search takes at most 64",
        "stop_token_ids",
        None,
    ),
    ({"length_penalty": 2}, "length_penalty is for beam search", "length_penalty", None),
    ({"early_stopping": True}, "early_stopping is for beam search", "early_stopping", None),
    ({"early_stopping": "always"}, "Invalid enum value 'always'", "early_stopping", None),
    (
        {"n": 64, "max_tokens": 128},
        "64 sequences with a prompt of 2 tokens and max_tokens 128 may .* 576 KV blocks; .* 256.* at most 62 tokens",
        "max_tokens",
        "context_length_exceeded",
    ),
    ({"cache_salt": ""}, "cache_salt must not be an empty string", "cache_salt", None),
    ({"cache_salt": 1}, "Expected `str | null`", "cache_salt", None),
    ({"priority": 1}, "this server schedules by fcfs", "priority", None),
    ({"priority": 0.5}, "Expected `int | null`", "priority", None),
    ({"priority": 2**64}, "priority must be a 64-bit integer", "priority", None),
    ({"echo": True}, "echo is not supported", "echo", None),
    ({"logprobs": 0}, "logprobs is not supported", "logprobs", None),
    ({"logprobs": 5}, "logprobs is not supported", "logprobs", None),
    ({"suffix": "x"}, "suffix is not supported", "suffix", None),
    ({"frequency_penalty": 0.1}, "frequency_penalty is not", "frequency_penalty", None),
    ({"presence_penalty": -1}, "presence_penalty is not", "presence_penalty", None),
    ({"repetition_penalty": 1.1}, "repetition_penalty is not", "repetition_penalty", None),
    ({"logit_bias": {"5": 1}}, "logit_bias is not", "logit_bias", None),
    ({"guided_regex": "a+"}, "guided_regex is not", "guided_regex", None),
    ({"min_tokens": 5}, "min_tokens is not", "min_tokens", None),
    ({"max_tokens": 0}, "max_tokens must be 1 or more, not 0", "max_tokens", None),
    ({"max_tokens": -1}, "max_tokens must be 1 or more, not -1", "max_tokens", None),
    ({"max_tokens": 1.5}, "Expected `int | null`, got `float`", "max_tokens", None),
    ({"max_tokens": "8"}, "Expected `int | null`, got `str`", "max_tokens", None),
    ({"max_tokens": True}, "Expected `int | null`, got `bool`", "max_tokens", None),
    (
        {"max_tokens": 511},
        "2 tokens and max_tokens is 511, .* 512 .* at most 510",
        "max_tokens",
        "context_length_exceeded",
    ),
    ({"max_tokens": 10**30}, "max_tokens is 10000", "max_tokens", "context_length_exceeded"),
    ({"temperature": 2.1}, "temperature must be between 0 and 2, not 2.1", "temperature", None),
    ({"temperature": -0.1}, "temperature must be between", "temperature", None),
    ({"temperature": "hot"}, "Expected `float | null`, got `str`", "temperature", None),
    ({"top_p": 0}, "top_p must be greater than 0", "top_p", None),
    ({"top_p": 1.5}, "top_p must be", "top_p", None),
    ({"top_k": -2}, "top_k must be", "top_k", None),
    ({"min_p": 2}, "min_p must be", "min_p", None),
    ({"seed": 2**63}, "seed must be a 64-bit integer", "seed", None),
    ({"stop": ["a", "b", "c", "d", "e"]}, "5 strings; at most 4", "stop", None),
    ({"stop": ""}, "free of empty strings", "stop", None),
    ({"stop": [1]}, "Expected `str`, got `int`", "stop", None),
    ({"stop_token_ids": [257]}, "token id 257; this model's ids are 0 to 256", "stop_token_ids", None),
    ({"stop_token_ids": [-1]}, "token id -1", "stop_token_ids", None),
    ({"stream_options": {"include_usage": True}}, "only with stream: true", "stream_options", None),
    ({"stream": True, "stream_options": {"x": 1}}, "unknown field `x`", "stream_options", None),
    ({"stream": "yes"}, "Expected `bool | null`", "stream", None),
    ({"prompt": []}, "empty list", "prompt", None),
    ({"prompt": ""}, "empty", "prompt", None),
    ({"prompt": [[]]}, "empty", "prompt", None),
    ({"prompt": None}, "got `null`", "prompt", None),
    ({"prompt": {"a": 1}}, "got `object`", "prompt", None),
    ({"prompt": ["a", 1]}, "mixes", "prompt", None),
    ({"prompt": [True]}, "got `bool`", "prompt", None),
    ({"prompt": [999999]}, "token id 999999", "prompt", None),
    ({"prompt": [-1]}, "token id -1", "prompt", None),
    ({"prompt": [10**30]}, "token id 1000000000", "prompt", None),
    ({"prompt": [65] * 512}, "512 tokens; this model takes fewer than 512", "prompt", "context_length_exceeded"),
    ({"prompt": ["a"] * 1100}, "1100 prompts; at most 1088", "prompt", None),
]

CHAT_FIELDS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"messages": []}, "empty list", "messages"),
    ({"messages": "hi"}, "Expected `array`", "messages"),
    ({"messages": [{"role": "user"}]}, "missing required field `content`", "messages"),
    ({"messages": [{"role": "wizard", "content": "hi"}]}, "Invalid enum value 'wizard'", "messages"),
    ({"messages": [{"role": "tool", "content": "hi", "tool_call_id": "1"}]}, "", "messages"),
    ({"messages": [{"role": "user", "content": "hi", "tool_calls": []}]}, "unknown field `tool_calls`", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "", "messages"),
    (
        {"messages": [{"role": "user", "content": [{"type": "audio"}]}]},
        "type 'audio'; this model takes text",
        "messages",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "a content part of type 'text' without text",
        "messages",
    ),
    ({"messages": [{"role": "user", "content": None}]}, "got `null`", "messages"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not supported", "tools"),
    ({"tool_choice": "required"}, "tool_choice is not supported", "tool_choice"),
    ({"response_format": {"type": "json_object"}}, "response_format is not supported", "response_format"),
    ({"logprobs": True}, "logprobs is not supported", "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs is not supported", "top_logprobs"),
    ({"modalities": ["audio"]}, "modalities is not supported", "modalities"),
    ({"prompt": "x"}, "unknown field prompt", "prompt"),
    ({"max_completion_tokens": 0}, "must be 1 or more, not 0", "max_completion_tokens"),
    ({"best_of": 2}, "best_of is not supported", "best_of"),
    ({"n": 65}, "n asks for 65 sequences", "n"),
    ({"n": 2, "use_beam_search": True, "stream": True}, "cannot be streamed", "use_beam_search"),
]

# Not what a client library would send.
BODIES: list[tuple[bytes, str]] = [
    (b"", "not valid JSON"),
    (b"{", "not valid JSON"),
    (b'{"prompt": "hi"}x', "not valid JSON"),
    (b'{"prompt": "\xff"}', "not valid JSON in UTF-8"),
    (b'{"prompt": "\\ud800"}', "half a surrogate pair"),
    (b'{"prompt": "\\ud83d x"}', "half a surrogate pair"),
    (b'{"prompt": NaN}', "not valid JSON"),
    (b'{"prompt": "hi", "temperature": 1e999}', "not valid JSON"),
    (b"[" * 100_000, "nested too deeply"),
    (b"[]", "must be a JSON object"),
    (b'"hi"', "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b"{}", "missing required field `prompt`"),
]

NEUTRAL: dict[str, Any] = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "logprobs": None,
    "n": 1,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "cache_salt": None,
    "priority": 0,
    "temperature": None,
    "top_k": -1,
    "stop": None,
    "stream": False,
    "stream_options": None,
    "tools": [],
    "tool_choice": "none",
    "response_format": {"type": "text"},
    "seed": None,
}


def checked(body: dict[str, Any], said: str) -> dict[str, Any]:
    """The error, which must have OpenAI's shape and say something."""
    error = body["error"]
    assert set(body) == {"error"}
    assert set(error) == {"message", "type", "param", "code"}
    assert re.search(said.replace("|", r"\|"), error["message"]), f"{error['message']!r} does not say {said!r}"
    return dict(error)


@pytest.mark.parametrize(("fields", "said", "param", "code"), COMPLETION_FIELDS, ids=lambda value: str(value)[:40])
async def test_completions_refuses_field(
    served: Served, fields: dict[str, Any], said: str, param: str, code: str | None
) -> None:
    status, body = await served.post(COMPLETIONS, **{"prompt": "hi", **fields})
    assert status == 400, body
    error = checked(body, said)
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


@pytest.mark.parametrize(("fields", "said", "param"), CHAT_FIELDS, ids=lambda value: str(value)[:40])
async def test_chat_refuses_field(served: Served, fields: dict[str, Any], said: str, param: str) -> None:
    status, body = await served.post(CHAT, **{"messages": HI, **fields})
    assert status == 400, body
    assert checked(body, said)["param"] == param


@pytest.mark.parametrize(("raw", "said"), BODIES, ids=lambda value: str(value)[:40])
async def test_completions_refuses_body(served: Served, raw: bytes, said: str) -> None:
    async with served.http.post(COMPLETIONS, data=raw, headers={"Content-Type": "application/json"}) as answer:
        assert answer.status == 400
        assert checked(await answer.json(), said)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("encoding", "raw"),
    [("gzip", b"not packed at all"), ("deflate", b"not packed at all")],
    ids=str,
)
async def test_completions_body_that_cannot_be_unpacked(
    served: Served, encoding: str, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with served.http.post(COMPLETIONS, data=raw, headers=headers) as answer:
        assert answer.status == 400
        assert (
            checked(await answer.json(), "the body is not what its headers say: .*content-encoding")["code"]
            == "invalid_json"
        )
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01 a greeting of TLS\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n{}",
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"
        ),
    ],
    ids=lambda sent: str(sent[:40]),
)
async def test_what_is_no_http(served: Served, caplog: pytest.LogCaptureFixture, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.service.port)
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    assert answer.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert [record for record in caplog.records if record.exc_info] == []


async def test_completions_accepts_what_changes_nothing(served: Served) -> None:
    status, body = await served.post(COMPLETIONS, prompt="hi", echo=False, best_of=1, suffix=None, **NEUTRAL)
    assert status == 200, body
    status, body = await served.post(CHAT, messages=HI, max_tokens=1, top_logprobs=0, **{**NEUTRAL, "logprobs": False})
    assert status == 200, body


async def test_completions_unknown_model(served: Served) -> None:
    status, body = await served.post(COMPLETIONS, prompt="hi", model="gpt-4")
    assert status == 404
    error = checked(body, "no model 'gpt-4' here; this server has 'tiny'")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    status, _ = await served.get("/v1/models/gpt-4")
    assert status == 404


async def test_completions_wrong_content_type(served: Served) -> None:
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}, {}):
        async with served.http.post(COMPLETIONS, data=b'{"prompt": "hi"}', headers=headers) as answer:
            assert answer.status == 415
            checked(await answer.json(), "Content-Type: application/json")


async def test_completions_charset_of_content_type_is_fine(served: Served) -> None:
    headers = {"Content-Type": "application/json; charset=utf-8"}
    async with served.http.post(COMPLETIONS, data=b'{"prompt": "hi"}', headers=headers) as answer:
        assert answer.status == 200


async def test_completions_wrong_method_and_path(served: Served) -> None:
    async with served.http.get(COMPLETIONS) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "POST"
        checked(await answer.json(), "takes POST, not GET")
    status, body = await served.post("/v1/embeddings", input="x")
    assert status == 404
    checked(body, "there is no /v1/embeddings here")


async def test_completions_body_too_large(served: Served) -> None:
    status, body = await served.post(COMPLETIONS, prompt="x" * 100_000)
    assert status == 413
    checked(body, "larger than the 100000 bytes")


async def test_chat_too_long(served: Served) -> None:
    status, body = await served.post(CHAT, messages=[{"role": "user", "content": "x" * 20_000}])
    assert status == 400
    assert checked(body, "tokens; this model takes fewer than 512")["param"] == "messages"


async def test_bad_requests_leave_a_stream_alone(serve: Serve) -> None:
    async with serve(Script(reply=ids("good "), step_seconds=0.005)) as served:
        body = {"prompt": "hi", "max_tokens": 300, "stream": True}
        async with served.http.post(COMPLETIONS, json=body) as stream:
            events = served.read(stream)
            first = await anext(events)
            for fields, _, _, _ in COMPLETION_FIELDS:
                await served.post(COMPLETIONS, **{"prompt": "hi", **fields})
            for raw, _ in BODIES:
                headers = {"Content-Type": "application/json"}
                async with served.http.post(COMPLETIONS, data=raw, headers=headers) as answer:
                    await answer.read()
            *chunks, done = [first, *[event async for event in events]]
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "good " * 60
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_chat_without_template(serve: Serve) -> None:
    script = Script(reply=ids("x"))
    async with serve(script, chat_template=None) as served:
        status, body = await served.post(CHAT, messages=HI)
        assert status == 400
        checked(body, "no chat template; use /v1/completions")


async def test_chat_template_error_is_the_users(serve: Serve) -> None:
    async with serve(Script(reply=ids("x")), chat_template="{{ raise_exception('no system here') }}") as served:
        status, body = await served.post(CHAT, messages=HI)
        assert status == 400
        assert checked(body, "no system here")["param"] == "messages"


async def test_completions_takes_any_top_k(served: Served) -> None:
    status, body = await served.post(COMPLETIONS, prompt="hi", top_k=10**30, max_tokens=1)
    assert status == 200, body
