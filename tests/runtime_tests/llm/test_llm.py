"""The offline form, on a scripted executor: what it returns, refuses, and shares with the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import octavo_runtime
from octavo_runtime import LLM, SamplingParams
from octavo_runtime.domain import StepPlan, StepResult
from octavo_runtime.errors import BadFlags, InvalidRequest, ModelNotFound
from octavo_runtime.llm import CompletionOutput
from octavo_runtime.testing import EOS, Script, ScriptedExecutor, ids, write_model


def offline(folder: Path, script: Script | None = None, **settings: Any) -> tuple[LLM, ScriptedExecutor]:
    script = script or Script(reply=ids("Hello, wörld 😀! "), fail_on=1)
    executor = ScriptedExecutor(script)
    return LLM(write_model(folder / "tiny", script), executor=executor, **settings), executor


def test_generate_one_text(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    (output,) = llm.generate("hi", SamplingParams(max_tokens=5))
    assert output.text == "Hello"
    assert output.token_ids == ids("Hello")
    assert output.prompt_token_ids == ids("hi")
    assert (output.finish_reason, output.stop_reason, output.num_cached_tokens) == ("length", None, 0)
    assert output.outputs == (CompletionOutput(0, "Hello", ids("Hello"), "length", None),)


def test_generate_default_sampling(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    assert len(llm.generate("hi")[0].token_ids) == 16


def test_generate_default_sampling_is_the_models(tmp_path: Path) -> None:
    offline(tmp_path)
    (tmp_path / "tiny" / "generation_config.json").write_text('{"temperature": 0.3, "top_k": 7}')
    llm, executor = offline(tmp_path)
    llm.generate("hi")
    llm.generate("hi", SamplingParams(max_tokens=1))
    llm, other = offline(tmp_path, generation_config="none")
    llm.generate("hi")
    used = [plan.sequences[0].sampling for each in (executor, other) for plan in each.plans if plan.sequences]
    assert [(params.temperature, params.top_k) for params in dict.fromkeys(used)] == [(0.3, 7), (1, 0), (1, 0)]


def test_generate_many_in_order_and_in_one_batch(tmp_path: Path) -> None:
    llm, executor = offline(tmp_path)
    each = [SamplingParams(max_tokens=n) for n in (9, 1, 5)]
    prompts: list[str | list[int]] = ["a", [66, 67], "c"]
    outputs = llm.generate(prompts, each)
    assert [output.text for output in outputs] == ["Hello, wö"[:8] + "\ufffd", "H", "Hello"]
    assert [output.prompt_token_ids for output in outputs] == [(97,), (66, 67), (99,)]
    assert len(executor.plans[0].sequences) == 3


def test_generate_one_list_of_token_ids_is_one_prompt(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    assert len(llm.generate([72, 73, 74])) == 1


def test_generate_several_answers_to_each_prompt(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    each = [
        SamplingParams(n=3, max_tokens=5),
        SamplingParams(max_tokens=1),
        SamplingParams(n=2, best_of=4, max_tokens=2),
    ]
    outputs = llm.generate(["a", "b", "c"], each)
    assert [[answer.text for answer in output.outputs] for output in outputs] == [["Hello"] * 3, ["H"], ["He"] * 2]
    assert [answer.index for answer in outputs[0].outputs] == [0, 1, 2]


def test_generate_stop_string_ends_its_own_answer_and_frees_the_engine(tmp_path: Path) -> None:
    llm, executor = offline(tmp_path, async_scheduling=False)
    (output,) = llm.generate("hi", SamplingParams(n=2, max_tokens=400, stop=("wör",)))
    assert [(a.text, a.finish_reason, a.stop_reason) for a in output.outputs] == [("Hello, ", "stop", "wör")] * 2
    assert len(executor.plans) == len(ids("Hello, wör")), "no step after the stop strings"


def test_generate_beam_search(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    params = SamplingParams(n=2, best_of=3, use_beam_search=True, max_tokens=4, length_penalty=0.0)
    (output,) = llm.generate("hi", params)
    assert output.text == "Hell", "the best token of each step"
    assert len({answer.text for answer in output.outputs}) == 2


def test_generate_more_answers_than_run_at_once(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path, max_num_seqs=2)
    with pytest.raises(InvalidRequest, match="n asks for 3 sequences; this server runs 2"):
        llm.generate("hi", SamplingParams(n=3))


def test_generate_nothing(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    assert llm.generate([]) == []


def test_generate_stop_string_frees_the_engine(tmp_path: Path) -> None:
    llm, executor = offline(tmp_path, async_scheduling=False)
    (output,) = llm.generate("hi", SamplingParams(max_tokens=400, stop=("wör",)))
    assert (output.text, output.finish_reason, output.stop_reason) == ("Hello, ", "stop", "wör")
    assert output.token_ids == ids("Hello, wör")
    assert len(executor.plans) == len(ids("Hello, wör")), "no step after the stop string"


def test_generate_end_of_sequence(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path, Script(reply=(*ids("ok"), EOS)))
    (output,) = llm.generate("hi", SamplingParams(max_tokens=50))
    assert (output.text, output.token_ids, output.finish_reason) == ("ok", (*ids("ok"), EOS), "stop")


def test_generate_prefix_cache_is_told(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    prompt = "a prompt of more than one block of sixteen"
    assert llm.generate(prompt)[0].num_cached_tokens == 0
    assert llm.generate(prompt)[0].num_cached_tokens == 32


def test_generate_without_prefix_cache(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path, enable_prefix_caching=False)
    prompt = "a prompt of more than one block of sixteen"
    assert [llm.generate(prompt)[0].num_cached_tokens for _ in range(2)] == [0, 0]


def test_generate_failed_request_is_its_own(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    bad, good = llm.generate([[1], [72]], SamplingParams(max_tokens=3))
    assert (bad.finish_reason, bad.text, bad.error) == ("error", "", "the logits are not finite")
    assert (good.text, good.error) == ("Hel", None)


def test_generate_refuses_before_anything_runs(tmp_path: Path) -> None:
    llm, executor = offline(tmp_path)
    with pytest.raises(InvalidRequest, match="token id 300"):
        llm.generate([[72], [300]])
    with pytest.raises(InvalidRequest, match="2 prompts, but 1 sampling_params"):
        llm.generate(["a", "b"], [SamplingParams()])
    assert executor.plans == []
    assert llm.generate("hi", SamplingParams(max_tokens=1))[0].text == "H"


def test_generate_interrupted_leaves_the_engine_usable(tmp_path: Path) -> None:
    class Interrupting(ScriptedExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            if len(self.plans) == 3:
                self.plans.append(plan)
                raise KeyboardInterrupt
            return super().execute(plan)

    script = Script(reply=ids("abc"))
    llm = LLM(write_model(tmp_path, script), executor=Interrupting(script))
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b"], SamplingParams(max_tokens=50))
    assert llm.generate("c", SamplingParams(max_tokens=3))[0].text == "abc"


def test_chat(tmp_path: Path) -> None:
    llm, _ = offline(tmp_path)
    one = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=5))
    assert [output.prompt_token_ids for output in one] == [ids("user: hi\nassistant: ")]
    two = llm.chat([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
    assert len(two) == 2


def test_llm_refuses_unknown_settings(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="LLM has no setting max_modl_len: did you mean max_model_len"):
        LLM(tmp_path, max_modl_len=5)
    with pytest.raises(TypeError, match="there are device, dtype"):
        LLM(tmp_path, zzz=5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"generation_config": "vllm"}, "generation_config must be auto or none, not 'vllm'"),
        ({"dtype": "int8"}, "dtype must be one of auto, float32"),
        ({"quantization": "int8"}, "quantization must be one of none, w8a16, w8a8, w4a16"),
        ({"block_size": 64}, "block_size must be one of 8, 16, 32, not 64"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a whole number, 1 or more, not 0"),
        ({"kv_cache_memory": "4Gi"}, "kv_cache_memory must be a whole number"),
        ({"max_model_len": True}, "max_model_len must be a whole number"),
        (
            {"scheduling_policy": "sjf"},
            "scheduling_policy must be one of fcfs, shortest-first, priority, slo, not 'sjf'",
        ),
        ({"admission_policy": "hope"}, "admission_policy must be one of expected, never-evict, max-utilization"),
        ({"async_scheduling": "yes"}, "async_scheduling must be one of True, False"),
        ({"swap_space": -1}, "swap_space must be a whole number, 0 or more"),
        ({"target_itl_ms": 0}, "target_itl_ms must be above 0, not 0"),
        ({"gpu_memory_utilization": 1.2}, r"gpu_memory_utilization must be in \(0, 1\], not 1.2"),
    ],
)
def test_llm_refuses_values(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LLM(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_num_batched_tokens": 8}, "max_num_batched_tokens 8 is less than max_num_seqs 64"),
        ({"time_slice_tokens": 8}, "time_slice_tokens 8 needs scheduling_policy shortest-first: under fcfs"),
        ({"target_itl_ms": 9.0, "scheduling_policy": "priority"}, "target_itl_ms 9.0 needs scheduling_policy slo"),
        ({"kv_cache_memory": 2, "kv_cache_memory_max": 1}, "kv_cache_memory_max 1 is less than kv_cache_memory 2"),
        ({"swap_space": 4}, "swap_space 4 is 4 bytes, less than a KV block"),
    ],
)
def test_llm_refuses_settings_that_contradict(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFlags, match=said):
        offline(tmp_path, **settings)


def test_llm_takes_the_settings_of_the_scheduler_flat(tmp_path: Path) -> None:
    llm, _ = offline(
        tmp_path,
        scheduling_policy="shortest-first",
        admission_policy="never-evict",
        time_slice_tokens=32,
        max_num_seqs=3,
    )
    scheduler = llm._config.scheduler
    assert (scheduler.policy, scheduler.admission) == ("shortest-first", "never-evict")
    assert (scheduler.time_slice_tokens, scheduler.max_num_seqs) == (32, 3)
    assert llm.generate("hi", SamplingParams(max_tokens=1))[0].text == "H"


def test_llm_model_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        LLM(tmp_path / "nowhere")


def test_exports() -> None:
    assert set(octavo_runtime.__all__) == {"LLM", "CompletionOutput", "RequestOutput", "SamplingParams"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = octavo_runtime.nothing
