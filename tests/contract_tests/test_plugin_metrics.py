"""`kubectl octavo top` reads what the runtime's server exposes."""

import math

from prometheus_client import generate_latest

from octavo_operator.plugin.top import quantile, read_metrics, rows
from octavo_runtime.server.metrics import Metrics


class Client:
    """An engine that has told nothing yet."""

    num_open = 4
    pid = 0

    def silent_for(self, _: float) -> float:
        return 0.0


def test_top_reads_the_servers_metrics() -> None:
    metrics = Metrics("tiny", Client(), max_num_queued_reqs=9)  # type: ignore[arg-type] # all that is asked
    looks = []
    for at in (10.0, 12.0):
        metrics.first_token(0.03, prompt_tokens=5)
        metrics.tokens(100)
        looks.append({"pod": read_metrics(generate_latest(metrics.registry).decode(), at)})
    (row,) = rows({"pod": "ready"}, *looks)
    assert (row.cache, row.running, row.waiting, row.tokens_per_second) == (0.0, 0.0, 4.0, 50.0)
    assert row.first_tokens[math.inf] == 1
    assert quantile(0.5, row.first_tokens) == 0.03
