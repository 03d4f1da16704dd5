"""The metrics of docs/contract.md: names, types, and numbers that add up."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from octavo_runtime.domain import SchedulerStats
from octavo_runtime.ipc.messages import Step
from octavo_runtime.server.metrics import Metrics
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
    "octavo:kv_cache_blocks": "gauge",
    "octavo:host_cache_usage_perc": "gauge",
    "octavo:max_num_queued_reqs": "gauge",
    "octavo:engine_silent_seconds": "gauge",
    "octavo:engine_resident_memory_bytes": "gauge",
    "octavo:recomputed_tokens": "counter",
    "octavo:swapped_out_blocks": "counter",
    "octavo:swapped_in_blocks": "counter",
    "octavo:invariant_violations": "counter",
    "octavo:predictions": "counter",
    "octavo:predicted_tokens": "counter",
    "octavo:predicted_actual_tokens": "counter",
    "octavo:predictions_within_p90": "counter",
}


async def test_metrics_names_types_and_label(serve: Serve) -> None:
    async with serve(Script(reply=ids("x"))) as served, served.http.get("/metrics") as answer:
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    assert CONTRACT.items() <= {name: family.type for name, family in families.items()}.items()
    for name in CONTRACT:
        assert families[name].samples, f"{name} has no sample before the first request"
        assert all(sample.labels["model_name"] == "tiny" for sample in families[name].samples)


def test_metrics_are_those_of_the_contract() -> None:
    contract = (Path(__file__).parents[3] / "docs" / "contract.md").read_text()
    named = {
        name if kind == "histogram" else name.removesuffix("_total")
        for name in re.findall(r"`((?:vllm|octavo):\w+)", contract)
        for kind in [CONTRACT.get(name)]
    }
    assert named == {*CONTRACT, "octavo:requests_refused"}


class Silent:
    """A client that has told nothing yet."""

    def __init__(self, num_open: int) -> None:
        self.num_open = num_open


def test_metrics_follow_the_scheduler() -> None:
    metrics = Metrics("tiny", Silent(num_open=4), max_num_queued_reqs=7)  # type: ignore[arg-type] # all that is asked

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"model_name": "tiny"})

    assert value("vllm:num_requests_waiting") == 4
    assert value("octavo:max_num_queued_reqs") == 7
    first = SchedulerStats(
        num_running=1, num_waiting=1, kv_cache_usage=0.5, num_running_requests=1, host_cache_usage=0.25, num_blocks=10, num_preemptions=2,
        num_recomputed_tokens=30, num_swapped_out=4, num_swapped_in=3, prefix_queries=50, prefix_hits=20,
        num_invariant_violations=1, num_predictions=5, predicted_tokens=60, predicted_actual_tokens=70, num_within_p90=4,
    )  # fmt: skip
    metrics.step(Step([], 1, first))
    assert value("vllm:num_requests_waiting") == 3, "two that the engine has not heard of"
    metrics.step(Step([], 1, replace(first, num_running=8, num_running_requests=2, num_swapped_out=9, num_blocks=12)))
    assert value("vllm:num_requests_waiting") == 2, "answers of one request run side by side"
    assert {name: value(name) for name in EXPECTED} == EXPECTED


EXPECTED = {
    "vllm:num_requests_running": 8,
    "vllm:kv_cache_usage_perc": 0.5,
    "vllm:num_preemptions_total": 2,
    "vllm:prefix_cache_queries_total": 50,
    "vllm:prefix_cache_hits_total": 20,
    "octavo:kv_cache_blocks": 12,
    "octavo:host_cache_usage_perc": 0.25,
    "octavo:recomputed_tokens_total": 30,
    "octavo:swapped_out_blocks_total": 9,
    "octavo:swapped_in_blocks_total": 3,
    "octavo:invariant_violations_total": 1,
    "octavo:predictions_total": 5,
    "octavo:predicted_tokens_total": 60,
    "octavo:predicted_actual_tokens_total": 70,
    "octavo:predictions_within_p90_total": 4,
}


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
    async with serve(script, block_size=8, admission_policy="max-utilization") as served:
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
