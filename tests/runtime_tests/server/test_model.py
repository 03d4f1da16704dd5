"""The whole runtime on a real model: tokenizer, template, engine process, HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from octavo_runtime import LLM, SamplingParams
from octavo_runtime.domain import EngineConfig
from octavo_runtime.server.serve import Service
from octavo_runtime.server.settings import ServerConfig

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


@pytest.mark.model
@pytest.mark.timeout(180)  # two loads of a model, with others on the machine
async def test_model_answers_alike_over_http_and_offline(smollm2: Path) -> None:
    config = EngineConfig(str(smollm2), kv_cache_memory=128 << 20)
    service = Service(ServerConfig("smollm2", host="127.0.0.1", port=0), config)
    await service.start()
    running = asyncio.create_task(service.run())
    try:
        ready = asyncio.create_task(service.ready.wait())
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        assert service.ready.is_set()
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(
                model="smollm2", messages=[{"role": "user", "content": QUESTION}], temperature=0, stream=True
            )
            chunks = [chunk.choices[0] async for chunk in stream]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await service.stop()
    assert "".join(choice.delta.content or "" for choice in chunks) == ANSWER
    assert chunks[-1].finish_reason == "stop"

    llm = LLM(smollm2, kv_cache_memory=128 << 20)
    (output,) = llm.chat([{"role": "user", "content": QUESTION}], SamplingParams(temperature=0, max_tokens=32))
    assert (output.text, output.finish_reason) == (ANSWER, "stop")
