"""The metrics of docs/contract.md: names, types, and numbers that add up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from octavo_runtime.testing import EOS, Script, ids

if TYPE_CHECKING:
    from tests.runtime_tests.server.conftest import Serve

PATH = "/v1/completions"

CONTRACT = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
}


async def test_metrics_names_types_and_label(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"))) as served, served.http.get("/metrics") as answer:
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    assert CONTRACT.items() <= {name: family.type for name, family in families.items()}.items()
    for name in CONTRACT:
        assert families[name].samples, f"{name} has no sample before the first request"
        assert all(sample.labels["model_name"] == "tiny" for sample in families[name].samples)


async def test_metrics_add_up(serve: Serve) -> None:
    script = Script(reply=ids("abcdefgh"), fail_on=1)
    async with serve(script) as served:
        requests = [
            served.post(PATH, prompt="four", max_tokens=8),
            served.post(PATH, prompt="four", max_tokens=8, stop="cd"),
            served.post(PATH, prompt=["one", "two"], max_tokens=2),
            served.post(PATH, prompt=[1], max_tokens=8),
            served.post(PATH, prompt="refused", max_tokens=0),
        ]
        statuses = [status for status, _ in await asyncio.gather(*requests)]
        assert statuses == [200, 200, 200, 500, 400]
        metrics = await served.until(lambda m: m["vllm:num_requests_running"] == 0)
    ended = {
        reason: metrics[f'vllm:request_success_total{{finished_reason="{reason}"}}']
        for reason in ("stop", "length", "abort", "error")
    }
    assert ended == {"stop": 1, "length": 3, "abort": 0, "error": 1}
    assert metrics["vllm:e2e_request_latency_seconds_count"] == 5
    assert metrics["vllm:prompt_tokens_total"] == 4 + 4 + 3 + 3, "the failed one got no token"
    assert metrics["vllm:generation_tokens_total"] == 8 + 4 + 2 + 2
    assert metrics["vllm:time_to_first_token_seconds_count"] == 4
    assert metrics["vllm:inter_token_latency_seconds_count"] == 16 - 4
    assert metrics["vllm:kv_cache_usage_perc"] == metrics["vllm:gpu_cache_usage_perc"] == 0


async def test_metrics_prefix_cache_and_preemptions(serve: Serve) -> None:
    # Four blocks of eight: two requests of 8 + 24 tokens cannot both stay.
    script = Script(reply=ids("abc"), num_blocks=4, max_model_len=32, step_seconds=0.001)
    async with serve(script, block_size=8) as served:
        prompts = [list(range(65, 73)), list(range(75, 83))]
        both = [served.post(PATH, prompt=prompt, max_tokens=24) for prompt in prompts]
        texts = [body["choices"][0]["text"] for _, body in await asyncio.gather(*both)]
        assert texts == ["abc" * 8] * 2
        first = await served.until(lambda m: m["vllm:num_requests_running"] == 0)
        assert first["vllm:num_preemptions_total"] >= 1
        await served.post(PATH, prompt=[*prompts[1], 65], max_tokens=1)
        metrics = await served.until(
            lambda m: m["vllm:prefix_cache_queries_total"] > first["vllm:prefix_cache_queries_total"]
        )
        assert metrics["vllm:prefix_cache_queries_total"] - first["vllm:prefix_cache_queries_total"] == 9
        assert metrics["vllm:prefix_cache_hits_total"] >= first["vllm:prefix_cache_hits_total"]


async def test_metrics_show_a_queue_that_the_engine_has_not_seen(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"), hang_on=7), max_num_seqs=1) as served:
        held = [asyncio.create_task(served.post(PATH, prompt=[7])) for _ in range(4)]
        metrics = await served.until(lambda m: m["vllm:num_requests_waiting"] == 4)
        assert metrics["vllm:num_requests_running"] == 0, "no step has ended"
        for task in held:
            task.cancel()


async def test_metrics_end_of_sequence_counts_as_a_token(serve: Serve) -> None:
    async with serve(Script(reply=(*ids("ok"), EOS))) as served:
        _, body = await served.post(PATH, prompt="hi", max_tokens=9)
        assert body["choices"][0] == {
            "index": 0,
            "text": "ok",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
        assert body["usage"]["completion_tokens"] == 3
        _, body = await served.post(PATH, prompt="hi", max_tokens=9, ignore_eos=True)
        assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("okokok", "length")
        metrics = await served.until(lambda m: m["vllm:num_requests_running"] == 0)
        assert metrics["vllm:generation_tokens_total"] == 3 + 9


async def test_small_routes(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"))) as served:
        status, body = await served.get("/v1/models")
        assert status == 200
        (model,) = body["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 512)
        assert (await served.get("/version"))[1].keys() == {"version"}
        _, body = await served.post("/tokenize", prompt="hé")
        assert body == {"count": 3, "max_model_len": 512, "tokens": list(ids("hé"))}
        _, body = await served.post("/tokenize", messages=[{"role": "user", "content": "hi"}])
        assert body["tokens"] == list(ids("user: hi\nassistant: "))
        _, body = await served.post("/detokenize", tokens=list(ids("hé")))
        assert body == {"prompt": "hé"}
        assert (await served.post("/detokenize", tokens=[257]))[0] == 400
        assert (await served.post("/tokenize", prompt="a", messages=[]))[0] == 400
        assert (await served.post("/tokenize"))[0] == 400
