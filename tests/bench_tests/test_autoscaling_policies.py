"""The policies decide what their sources say: an opponent that is built wrong would be easy to beat."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.autoscaling.baselines import Apa, Constant, Kpa, KubeAI, SaturationV1
from bench.autoscaling.hpa import Hpa, PodsMetric, cache_usage, keda, production_stack, requests, waiting
from bench.autoscaling.policies import POLICIES
from bench.autoscaling.policy import PodView, Policy, Sample

MINUTE = [5.0 * tick for tick in range(13)]


def sample(time: float, **values: float) -> Sample:
    known = {"running": 0, "waiting": 0, "cache_usage": 0.0, "finished": 0, "prompt_tokens": 0, "generation_tokens": 0}
    return Sample(time, **(known | {"preemptions": 0, "refused": 0} | values))  # type: ignore[arg-type]  # each has its own type


def pods(
    now: float, ready: int, *, starting: int = 0, draining: int = 0, lost: int = 0, **values: float
) -> list[PodView]:
    """Pods that all have the same figures; of the ready ones some did not answer just now."""
    fresh, old = sample(now, **values), sample(-100.0, **values)
    return [
        *(PodView(f"ready-{n}", 0.0, 0.0, False, old if n < lost else fresh) for n in range(ready)),
        *(PodView(f"draining-{n}", 0.0, 0.0, True, fresh) for n in range(draining)),
        *(PodView(f"starting-{n}", now - 10, None, False, None) for n in range(starting)),
    ]


def decide(policy: Policy, desired: int, views: Sequence[tuple[float, list[PodView]]]) -> int:
    """Decides at each of the moments; returns the last count."""
    for now, seen in views:
        desired = policy.decide(now, desired, seen)
    return desired


def settled(policy: Policy, desired: int, **values: float) -> tuple[int, float]:
    """Ten minutes on its target; returns the count and the time."""
    now = 0.0
    while now < 600.0:
        desired = policy.decide(now, desired, pods(now, desired, **values))  # type: ignore[arg-type]  # not all
        now += policy.interval
    return desired, now


def test_hpa_takes_what_starts_as_empty_on_the_way_up() -> None:
    # (2 x 2 + 2 x 0) / 4 is just the target.
    assert Hpa(PodsMetric(cache_usage, 0.4)).decide(0.0, 4, pods(0.0, 2, starting=2, cache_usage=0.8)) == 4


def test_hpa_doubles_at_twice_the_target() -> None:
    assert Hpa(PodsMetric(cache_usage, 0.4)).decide(0.0, 4, pods(0.0, 4, cache_usage=0.8)) == 8


def test_hpa_takes_what_does_not_answer_as_full_on_the_way_down() -> None:
    # (2 x 0.5 + 2 x 1) / 4 = 0.75 of the target: three.
    policy = Hpa(PodsMetric(cache_usage, 0.4), down_window=0.0)
    assert policy.decide(0.0, 4, pods(0.0, 4, lost=2, cache_usage=0.2)) == 3


def test_hpa_holds_where_missing_pods_turn_the_direction() -> None:
    # Ratio 1.5 of those that answer, 0.75 of all.
    policy = Hpa(PodsMetric(cache_usage, 0.4), down_window=0.0)
    assert policy.decide(0.0, 4, pods(0.0, 4, lost=2, cache_usage=0.6)) == 4


def test_hpa_stays_within_the_tolerance() -> None:
    assert Hpa(PodsMetric(cache_usage, 0.4)).decide(0.0, 4, pods(0.0, 4, cache_usage=0.435)) == 4


def test_hpa_goes_down_to_the_largest_recommendation_of_the_window() -> None:
    policy = Hpa(PodsMetric(requests, 10.0))
    desired, now = settled(policy, 8, running=10)
    assert desired == 8
    # It recommends 6, 5 and 2.
    for load in (7.5, 6.25, 2.5):
        desired = policy.decide(now, desired, pods(now, 8, running=load))
        now += 15
    assert desired == 8, "the window still holds the eights before"
    counts = []
    while now <= 915.0:  # the last of the eights was at 585 s
        desired = policy.decide(now, desired, pods(now, 8, running=2.5))
        counts.append(desired)
        now += 15
    assert counts[-4:] == [8, 6, 5, 2]


def test_hpa_goes_up_by_four_or_doubles_in_a_period() -> None:
    policy = Hpa(PodsMetric(waiting, 2.0))
    assert policy.decide(0.0, 1, pods(0.0, 1, waiting=1000)) == 5
    assert policy.decide(5.0, 5, pods(5.0, 1, starting=4, waiting=1000)) == 5, "it decides every 15 s"
    assert policy.decide(15.0, 5, pods(15.0, 1, starting=4, waiting=1000)) == 10


def test_hpa_takes_the_largest_of_its_metrics() -> None:
    policy = Hpa(PodsMetric(cache_usage, 0.7), PodsMetric(waiting, 2.0))
    assert policy.decide(0.0, 2, pods(0.0, 2, waiting=3, cache_usage=0.1)) == 3


def test_hpa_does_not_count_pods_that_drain() -> None:
    assert Hpa(PodsMetric(cache_usage, 0.4)).decide(0.0, 2, pods(0.0, 2, draining=3, cache_usage=0.8)) == 4


@pytest.mark.parametrize(
    "name", ["ours", "hpa-cache", "hpa-queue", "hpa-both", "aibrix-apa", "aibrix-kpa", "kubeai", "wva"]
)
def test_policy_holds_while_nothing_answers(name: str) -> None:
    policy = POLICIES[name]()
    desired, now = 6, 0.0
    while now <= 600.0:
        desired = policy.decide(now, desired, pods(now, 6, lost=6, running=64, waiting=50, cache_usage=0.9))
        now += policy.interval
    assert desired == 6


def test_keda_takes_no_answer_as_no_load() -> None:
    policy = keda()
    desired, now = settled(policy, 6, waiting=5)
    assert desired == 6
    while now <= 1200.0:
        desired = policy.decide(now, desired, pods(now, 6, lost=6, waiting=50))
        now += policy.interval
    assert desired == 0, "the minimum is the caller's"


def test_keda_shares_the_sum_out() -> None:
    assert keda().decide(0.0, 2, pods(0.0, 2, waiting=7)) == 3
    assert keda().decide(0.0, 2, pods(0.0, 2, lost=1, waiting=7)) == 2, "what a lost pod has waiting is not seen"


def test_production_stack_never_goes_down_while_there_is_traffic() -> None:
    desired, _ = settled(production_stack(), 6, running=1)
    assert desired == 6


def test_production_stack_goes_up_by_one_a_minute() -> None:
    policy = production_stack()
    counts, desired = [], 1
    for tick in range(25):
        now = 5.0 * tick
        desired = policy.decide(now, desired, pods(now, desired, running=64))
        counts.append(desired)
    assert [counts[tick] for tick in (0, 11, 12, 23, 24)] == [2, 2, 3, 3, 4]


def test_production_stack_counts_generated_tokens() -> None:
    policy = production_stack()
    desired = 1
    for tick in range(4):
        now = 5.0 * tick
        desired = policy.decide(now, desired, pods(now, 1, generation_tokens=1000.0 * tick))
    assert desired == 2


def test_kubeai_takes_the_mean_of_ten_minutes() -> None:
    policy = KubeAI(target=100)
    # 12 of 60 values are 1,000: 200 in the mean.
    counts = [policy.decide(10.0 * tick, 1, pods(10.0 * tick, 1, running=64, waiting=936)) for tick in range(13)]
    assert (counts[5], counts[6], counts[11], counts[12]) == (1, 2, 2, 3)


def test_kubeai_goes_down_after_three_lower_results() -> None:
    policy = KubeAI(target=1, window=10)
    lower = [(10.0 * tick, pods(10.0 * tick, 2, running=1)) for tick in range(4)]
    assert decide(policy, 4, lower[:3]) == 4
    assert decide(policy, 4, lower[3:]) == 2


def test_kubeai_skips_a_tick_that_is_lost() -> None:
    policy = KubeAI(target=1, window=10)
    assert policy.decide(0.0, 3, pods(0.0, 3, lost=1, running=50)) == 3


def test_apa_doubles_at_most() -> None:
    assert Apa(target=0.2).decide(0.0, 4, pods(0.0, 4, cache_usage=0.4)) == 8
    assert Apa(target=0.2).decide(0.0, 4, pods(0.0, 4, cache_usage=0.9)) == 8


def test_apa_goes_down_to_the_smallest_recommendation_of_the_window() -> None:
    policy = Apa(target=0.5)
    assert policy.decide(0.0, 4, pods(0.0, 4, cache_usage=0.0)) == 2
    # The mean is 0.35 now, so it recommends 3 itself, and gets the 2 of before.
    assert policy.decide(10.0, 4, pods(10.0, 4, cache_usage=0.7)) == 2


def test_apa_leaves_pods_out_that_do_not_answer() -> None:
    views = pods(0.0, 4, lost=3, cache_usage=0.9)
    assert Apa(target=0.5).decide(0.0, 4, views) == 8
    assert Apa(target=0.5).decide(0.0, 4, pods(0.0, 1, starting=3, cache_usage=0.9)) == 8


def test_kpa_takes_the_mean_for_the_total() -> None:
    assert Kpa(target=0.4).decide(0.0, 4, pods(0.0, 4, cache_usage=0.8)) == 2


def test_wva_adds_one_when_spare_capacity_is_short_and_none_starts() -> None:
    def run(starting: int) -> int:
        views = [(now, pods(now, 3 - starting, starting=starting, cache_usage=0.75)) for now in MINUTE]
        return decide(SaturationV1(), 3, views)

    assert run(0) == 4
    assert run(1) == 3


def test_wva_adds_one_when_all_are_saturated() -> None:
    assert decide(SaturationV1(), 2, [(now, pods(now, 2, waiting=9)) for now in MINUTE]) == 3


def test_wva_removes_one_when_the_rest_can_take_the_load() -> None:
    def run(usage: float) -> int:
        return decide(SaturationV1(), 3, [(now, pods(now, 3, cache_usage=usage)) for now in MINUTE])

    assert run(0.46) == 2  # 0.69 on two
    assert run(0.48) == 3  # 0.72 on two


def test_wva_sees_the_peak_of_a_minute() -> None:
    policy = SaturationV1()
    peak = [policy.decide(now, 2, pods(now, 2, cache_usage=0.75 if now == 30 else 0.1)) for now in MINUTE]
    assert peak[-1] == 3


def test_constant_is_constant() -> None:
    assert Constant(7).decide(0.0, 3, pods(0.0, 3, waiting=99)) == 7
