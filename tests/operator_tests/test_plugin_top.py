import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.plugin.screen import coloured
from octavo_operator.plugin.top import Row, Sample, as_json, quantile, read_metrics, rows, screen
from tests.operator_tests.conftest import GoldenScreen

INF = math.inf


@pytest.mark.parametrize(
    ("share", "buckets", "value"),
    [
        (0.5, {}, None),
        (0.5, {0.1: 0, INF: 0}, None),
        (0.5, {0.1: 10, INF: 10}, 0.05),
        (0.5, {0.1: 0, 0.5: 10, INF: 10}, 0.3),
        (0.99, {0.1: 98, 0.5: 100, INF: 100}, 0.3),
        (0.99, {0.1: 1, INF: 100}, INF),
        (1.0, {0.1: 5, 0.2: 5, 0.4: 10, INF: 10}, 0.4),
    ],
)
def test_quantile_is_that_of_prometheus(share: float, buckets: dict[float, float], value: float | None) -> None:
    assert quantile(share, buckets) == (value if value is None else pytest.approx(value))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_quantile_rises_with_the_share(counts: list[int], one: float, other: float) -> None:
    bounds = [0.1 * 2**number for number in range(len(counts) - 1)] + [INF]
    buckets = {bound: float(sum(counts[: number + 1])) for number, bound in enumerate(bounds)}
    low, high = quantile(min(one, other), buckets), quantile(max(one, other), buckets)
    assert (low is None) == (high is None) == (sum(counts) == 0)
    assert low is None or high is None or low <= high


def sample(at: float, tokens: float, first: dict[float, float], *, cache: float = 0.5) -> Sample:
    numbers = {
        "vllm:kv_cache_usage_perc": cache,
        "vllm:num_requests_running": 12.0,
        "vllm:num_requests_waiting": 3.0,
        "vllm:generation_tokens_total": tokens,
    }
    return Sample(at, numbers, first)


STATES = {"chat-5c8d7-4wq8n": "ready", "chat-5c8d7-9kzl2": "ready", "chat-7d9f4-x2x4z": "loads the model"}
BEFORE = {
    "chat-5c8d7-4wq8n": sample(10, 1000, {0.1: 5, 0.5: 5, INF: 5}),
    "chat-5c8d7-9kzl2": sample(10, 500, {0.1: 0, 0.5: 1, INF: 1}),
}
AFTER = {
    "chat-5c8d7-4wq8n": sample(12, 4100, {0.1: 25, 0.5: 35, INF: 36}, cache=0.97),
    "chat-5c8d7-9kzl2": sample(12, 900, {0.1: 0, 0.5: 5, INF: 5}),
}


def test_screen_has_a_line_for_each_pod_and_one_for_all(golden_screen: GoldenScreen) -> None:
    golden_screen("top", screen(rows(STATES, BEFORE, AFTER), []))
    assert screen(rows(STATES, BEFORE, AFTER), ["may not"]).endswith("\nnot shown: may not")
    assert "\x1b[31m97%" in screen(rows(STATES, BEFORE, AFTER), [], coloured)
    assert screen([], []) == "There are no pods."


def test_rows_of_a_server_that_was_started_again_have_no_rates() -> None:
    name = "chat-5c8d7-4wq8n"
    (row,) = rows({name: "ready"}, AFTER, BEFORE | {name: sample(14, 10, {0.1: 1, 0.5: 1, INF: 1})})
    assert (row.running, row.tokens_per_second, row.first_tokens) == (12.0, None, {})


def test_read_metrics_sums_over_labels() -> None:
    text = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a"} 2
vllm:num_requests_running{model_name="b"} 3
"""
    assert read_metrics(text, 1.0).numbers == {"vllm:num_requests_running": 5.0}
    with pytest.raises(ValueError, match="html"):
        read_metrics("<html>", 1.0)


def test_as_json_has_no_infinity() -> None:
    row = Row("p", "ready", 0.5, 1, 0, 10.0, {0.1: 1, INF: 100})
    assert as_json([row], [])["pods"][0]["ttftP99"] is None
