"""Inverse frequencies against transformers' own, over the forms that configurations come in."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo_kernels.testing import assert_close
from octavo_runtime.loading.spec import decoder_spec
from octavo_runtime.models.rope import inverse_frequencies

CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 10_000.0},
    "default-theta": {"rope_theta": 500_000.0},
    "linear": {"rope_theta": 10_000.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "linear-type": {"rope_theta": 10_000.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama3.1": {
        "rope_theta": 500_000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "llama3.2": {
        "rope_theta": 500_000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "yarn": {
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 32768,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    },
    "yarn-all": {
        "rope_theta": 10_000.0,
        "max_position_embeddings": 163840,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 16,
            "beta_slow": 2,
            "mscale": 1.2,
            "mscale_all_dim": 0.8,
            "truncate": False,
        },
    },
    "yarn-attention-factor": {
        "rope_theta": 10_000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 0.75},
    },
    "yarn-tiny-original": {
        "rope_theta": 10_000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
    },
}


@pytest.mark.parametrize("head_dim", [64, 128, 20])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("form", ["transformers-4", "transformers-5"])
def test_inverse_frequencies(case: dict[str, Any], head_dim: int, form: str) -> None:
    sizes: dict[str, Any] = {
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "head_dim": head_dim,
        "num_hidden_layers": 1,
    }
    sizes |= {"intermediate_size": 8, "vocab_size": 8}
    given = {"max_position_embeddings": 2048} | case
    config: Any = LlamaConfig(**sizes, **copy.deepcopy(given))
    ours = config.to_dict() if form == "transformers-5" else {"model_type": "llama", **sizes, **given}
    spec = decoder_spec(ours)
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        truth = 1.0 / given["rope_theta"] ** (torch.arange(0, head_dim, 2) / head_dim)
        factor = 1.0
    else:
        truth, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    assert spec.rope.kind == kind
    assert_close(torch.from_numpy(inverse_frequencies(spec.rope, head_dim)), truth, 1e-6)
    assert spec.rope.attention_factor == pytest.approx(factor)


def test_inverse_frequencies_llama3_by_wavelength() -> None:
    # factor 8, original 8192: wavelengths below 2048 stay, above 8192 are stretched 8 times, smoothly between.
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": 128,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
    }
    config |= {"intermediate_size": 8, "vocab_size": 8} | CASES["llama3.1"]
    plain = 1.0 / 500_000.0 ** (torch.arange(0, 128, 2) / 128)
    ratio = plain / torch.from_numpy(inverse_frequencies(decoder_spec(config).rope, 128))
    wavelength = 2 * math.pi / plain
    assert torch.allclose(ratio[wavelength < 2048], torch.ones(()))
    assert torch.allclose(ratio[wavelength > 8192], torch.tensor(8.0))
    assert (ratio.diff() >= -1e-6).all(), "but for rounding"
    assert ((ratio > 1.01) & (ratio < 7.9)).any()
