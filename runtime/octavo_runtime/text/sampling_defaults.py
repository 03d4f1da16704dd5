"""What a model's generation_config.json recommends for sampling, for requests that do not say."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from octavo_runtime.domain import SamplingParams
from octavo_runtime.errors import InvalidRequest, ModelNotFound, readable
from octavo_runtime.text.tokenizer import read_json

__all__ = ["sampling_defaults"]

_FILE = "generation_config.json"
_KINDS: dict[str, tuple[type, ...]] = {
    "temperature": (int, float),
    "top_k": (int,),
    "top_p": (int, float),
    "min_p": (int, float),
}
_NEUTRAL = {"repetition_penalty": 1}  # what it may ask for that is not built yet, and the value that asks for nothing

_log = logging.getLogger(__name__)


@readable(ModelNotFound)
def sampling_defaults(model: Path) -> dict[str, Any]:
    """Fields of SamplingParams, by name. A value that makes no sense is left out with a warning.

    `do_sample: false` changes nothing: whoever wants greedy answers asks for temperature 0.

    Args:
        model: The model's directory.

    Raises:
        UnsupportedModel: The file is damaged.
        ModelNotFound: It cannot be read.
    """
    config = read_json(model / _FILE)
    defaults: dict[str, Any] = {}
    for name, kinds in _KINDS.items():
        value = config.get(name)
        if value is None:
            continue
        fault = f"{name} must be a number, not {value!r}" if type(value) not in kinds else _fault(name, value)
        if fault is None:
            defaults[name] = value
        else:
            _log.warning("%s: %s; it is ignored", _FILE, fault)
    for name, neutral in _NEUTRAL.items():
        if config.get(name, neutral) not in {None, neutral}:
            _log.warning("%s: %s is not supported and is ignored", _FILE, name)
    return defaults


def _fault(name: str, value: Any) -> str | None:
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as error:
        return error.message
    return None
