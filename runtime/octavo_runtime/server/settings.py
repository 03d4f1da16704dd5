"""What the server is started with, beside the engine's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ServerConfig"]


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`octavo serve --help` describes each field.

    Attributes:
        served_model_name: The model's name in requests, answers and metrics.
        host: Address to listen on; empty: all, since a server in a pod is reached from outside it.
        port: Port to listen on; 0 picks a free one.
        generation_config: auto: requests that do not say are sampled as the model's generation_config.json has it; none:
            by OpenAI's defaults.
        max_num_queued_reqs: Requests beyond those that run; more get 503.
        max_num_queued_tokens: Prompt tokens of requests that wait for their first token; beyond them a request gets 503
            unless none waits. None: no limit.
        max_connection_age: Seconds after which a connection is closed with its next answer; 0 never.
        shutdown_timeout: Seconds that running requests get to finish after SIGTERM.
        load_timeout: Seconds without progress, while the model loads, after which /livez fails.
        step_timeout: Seconds without a step, while there is work, after which /livez fails.
        sse_ping_seconds: Between two comments that keep a stream open.
        max_body_bytes: Largest request body; more gets 413.
        record_trace: File for the trace of the requests; None: none.
    """

    served_model_name: str
    host: str = ""
    port: int = 8000
    generation_config: Literal["auto", "none"] = "auto"
    max_num_queued_reqs: int = 1024
    max_num_queued_tokens: int | None = None
    max_connection_age: float = 30.0
    shutdown_timeout: float = 120.0
    load_timeout: float = 600.0
    step_timeout: float = 120.0
    sse_ping_seconds: float = 15.0
    max_body_bytes: int = 16 << 20
    record_trace: Path | None = None
