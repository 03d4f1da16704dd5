import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from octavo_operator.autoscale.core.exposition import SampleRefused, read_sample
from octavo_operator.autoscale.core.values import Sample

WHOLE = """\
# HELP vllm:num_requests_running Requests that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="a } b"} 3.0
vllm:num_requests_waiting{model_name="a } b"} 2.0 1700000000000
vllm:kv_cache_usage_perc{model_name="a } b"} 0.25
vllm:generation_tokens_total{model_name="a } b"} 1.5e+03
vllm:generation_tokens_created{model_name="a } b"} 1.7e+09
vllm:request_success_total{finished_reason="stop",model_name="a } b"} 7.0
vllm:request_success_total{finished_reason="length",model_name="a } b"} 4.0
octavo:requests_refused_total{code="queue_full",model_name="a } b"} 6.0
"""


def test_read_sample_sums_over_labels_and_takes_no_other_name() -> None:
    assert read_sample(WHOLE, 5.0) == Sample(5.0, 3.0, 2.0, 0.25, 11.0, 1500.0, 6.0)


@pytest.mark.parametrize("labels", [(), ("model_name",)])
def test_read_sample_understands_the_client_library(labels: tuple[str, ...]) -> None:
    registry = CollectorRegistry()
    values = {"vllm:num_requests_running": 1, "vllm:num_requests_waiting": 2, "vllm:gpu_cache_usage_perc": 0.5}
    for name, value in values.items():
        gauge = Gauge(name, "text", labels, registry=registry)
        (gauge.labels('x"}{ 1') if labels else gauge).set(value)
    for name, value in {"vllm:request_success": 3, "vllm:generation_tokens": 4}.items():
        counter = Counter(name, "text", labels, registry=registry)
        (counter.labels('x"}{ 1') if labels else counter).inc(value)
    assert read_sample(generate_latest(registry).decode(), 0.0) == Sample(0.0, 1, 2, 0.5, 3, 4, 0)


def test_read_sample_counts_the_two_names_of_the_cache_once() -> None:
    both = WHOLE + 'vllm:gpu_cache_usage_perc{model_name="a } b"} 0.25\n'
    old = WHOLE.replace("kv_cache_usage", "gpu_cache_usage")
    assert read_sample(both, 5.0) == read_sample(old, 5.0) == read_sample(WHOLE, 5.0)


def test_read_sample_has_the_pods_own_limit_or_that_of_a_runtime_that_tells_none() -> None:
    told = WHOLE + 'octavo:max_num_queued_reqs{model_name="a } b"} 16.0\n'
    assert read_sample(told, 5.0) == Sample(5.0, 3.0, 2.0, 0.25, 11.0, 1500.0, 6.0, queue_limit=16.0)
    assert read_sample(WHOLE, 5.0).queue_limit == 1024


def test_read_sample_before_the_first_request_has_ended() -> None:
    young = "".join(line for line in WHOLE.splitlines(keepends=True) if "success" not in line)
    assert read_sample(young, 5.0).finished == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (WHOLE, "", "no vllm:num_requests_running"),
        (WHOLE, "<html>busy</html>", "no vllm:num_requests_running"),
        ("3.0\n", "NaN\n", "vllm:num_requests_running is nan"),
        ("3.0\n", "+Inf\n", "vllm:num_requests_running is inf"),
        ("3.0\n", "-1\n", "vllm:num_requests_running is -1"),
        ("3.0\n", "\n", "has no number"),
        ("0.25", "85", "not a percentage"),
        ("kv_cache_usage_perc", "something", "no vllm:kv_cache_usage_perc"),
        ("vllm:num_requests_waiting", "vllm:num_requests_waiting_x", "no vllm:num_requests_waiting"),
        ("vllm:generation_tokens_total", "generation_tokens_total", "no vllm:generation_tokens_total"),
    ],
)
def test_read_sample_refuses_what_makes_no_sense(old: str, new: str, message: str) -> None:
    assert old in WHOLE
    with pytest.raises(SampleRefused, match=message.replace("+", r"\+")):
        read_sample(WHOLE.replace(old, new), 5.0)
