"""What users of autoscalers have learnt the hard way, as situations with one right answer.

The numbers are those of the list that test_facts.py speaks of. Those about scaling without a row here:

  6  no scrape comes through for ten minutes at the peak  test_decide.py, test_autoscaler.py, test_scaling.py
  7  an answer that makes no sense is no zero             here, and test_exposition.py
 11  bounds and targets that contradict each other        e2e/stories/test_operator_admission.py
 14  the scale's selector matches this object's pods only test_facts.py
 30  a pod that was deleted unseen is not asked           test_autoscaler.py
 31  one of two operators scales                          test_lead.py
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo_operator.autoscale.core.exposition import SampleRefused, read_sample
from octavo_operator.autoscale.core.values import Decision, Pod, Settings, Verdict
from tests.operator_tests.autoscale.test_decide import RATE, SETTINGS, Fleet, share_of


def two_of_four_still_load() -> Decision:
    fleet = Fleet(2)
    fleet.starting(2)
    return fleet.steps(20, 1.0)


def all_four_have_twice_their_load(most: int = 20) -> Decision:
    fleet = Fleet(4, replace(SETTINGS, max_replicas=most))
    for second in range(1, 10):
        decision = fleet.step(1.0, waiting=second * 5 * RATE)
    return decision


def recommendations_fall() -> Decision:
    fleet = Fleet(6)
    for load, steps in ((0.9, 20), (0.7, 12), (0.25, 36)):
        decision = fleet.steps(steps, share_of(load))
    assert decision.needed <= 3
    return decision


def nobody_answers_at_the_peak() -> Decision:
    fleet = Fleet(4)
    fleet.steps(60, share_of(0.9))
    fleet.now += 600
    return fleet.decide()


def pod_is_replaced_under_its_name() -> Decision:
    fleet = Fleet(2)
    fleet.steps(20, share_of(0.7))
    fleet.pods[0] = Pod("another", fleet.now, fleet.now)
    return fleet.step(share_of(0.7))


def least_rises_without_traffic() -> Decision:
    fleet = Fleet(1, replace(SETTINGS, min_replicas=3))
    fleet.pods = [Pod("starts", 0.0, None)]
    return fleet.decide()


def somebody_scales_within_the_bounds() -> Decision:
    fleet = Fleet(1)
    fleet.steps(20, share_of(0.5))
    fleet.desired = 5
    decisions = [fleet.step(share_of(0.5)) for _ in range(10)]
    assert len({decision.replicas for decision in decisions}) == 1
    return decisions[-1]


Replicas = range | int


@pytest.mark.parametrize(
    ("situation", "replicas", "verdict"),
    [
        pytest.param(two_of_four_still_load, 4, None, id="1"),
        pytest.param(all_four_have_twice_their_load, range(8, 11), None, id="2"),
        pytest.param(lambda: all_four_have_twice_their_load(6), 6, None, id="2, at most 6"),
        pytest.param(recommendations_fall, 6, Verdict.STABILIZING, id="4"),
        pytest.param(nobody_answers_at_the_peak, 4, Verdict.NO_METRICS, id="6"),
        pytest.param(pod_is_replaced_under_its_name, 2, Verdict.ENOUGH, id="10"),
        pytest.param(least_rises_without_traffic, 3, Verdict.OUT_OF_BOUNDS, id="12"),
        pytest.param(somebody_scales_within_the_bounds, 1, Verdict.ENOUGH, id="13"),
    ],
)
def test_decide_in_a_known_situation(
    situation: Callable[[], Decision], replicas: Replicas, verdict: Verdict | None
) -> None:
    decision = situation()
    assert decision.replicas in (replicas if isinstance(replicas, range) else [replicas])
    assert verdict in (None, decision.verdict)


WHOLE = {
    "vllm:num_requests_running": "3",
    "vllm:num_requests_waiting": "2",
    "vllm:kv_cache_usage_perc": "0.25",
    "vllm:generation_tokens_total": "1500",
    "vllm:request_success_total": "11",
}


def text(values: dict[str, str]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1", "85", ""])
def test_read_sample_fact_7_nonsense_is_refused(value: str) -> None:
    with pytest.raises(SampleRefused):
        read_sample(text(WHOLE | {"vllm:kv_cache_usage_perc": value}), 0.0)


def test_read_sample_fact_7_empty_answer_is_refused() -> None:
    with pytest.raises(SampleRefused):
        read_sample("", 0.0)


@pytest.mark.parametrize("names", [("kv",), ("gpu",), ("kv", "gpu")])
def test_decide_fact_8_both_names_of_the_cache_count_once(names: tuple[str, ...]) -> None:
    without = {name: value for name, value in WHOLE.items() if "cache" not in name}
    sample = read_sample(text(without | {f"vllm:{name}_cache_usage_perc": "0.9" for name in names}), 5.0)
    fleet = Fleet(2, Settings(1, 20))
    fleet.now = 5.0
    fleet.pods = [replace(pod, sample=sample) for pod in fleet.pods]
    decision = fleet.decide()
    assert decision.busiest == pytest.approx(0.95 * 0.9 / 0.8)
    assert decision.replicas == 3
