"""Bodies to sampling settings, where several fields meet."""

from __future__ import annotations

import json
from typing import Any

from octavo_runtime.domain import SamplingParams
from octavo_runtime.server.wire import CompletionRequest, parse

DEFAULTS = {"temperature": 0.6, "top_k": 20, "top_p": 0.9}


def sampling(**body: Any) -> SamplingParams:
    return parse(json.dumps({"prompt": "hi", **body}).encode(), CompletionRequest).sampling(DEFAULTS)


def test_sampling_defaults_hold_where_the_request_is_silent() -> None:
    params = sampling(temperature=0, top_p=None)
    assert (params.temperature, params.top_k, params.top_p) == (0, 20, 0.9)


def test_sampling_defaults_do_not_hold_for_beams() -> None:
    params = sampling(n=2, use_beam_search=True)
    assert (params.temperature, params.top_k, params.top_p) == (1, 0, 1)


def test_sampling_top_k_of_minus_one_beats_the_default() -> None:
    assert sampling(top_k=-1).top_k == 0
