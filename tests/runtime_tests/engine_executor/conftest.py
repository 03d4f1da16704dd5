from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from octavo_runtime.domain import SamplingParams, ScheduledSequence

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 96,
    "vocab_size": 30,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    """Random weights of CONFIG."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (30, 16),
        "lm_head.weight": (30, 16),
        "model.norm.weight": (16,),
    }
    for number in range(2):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (16,),
            f"{layer}.post_attention_layernorm.weight": (16,),
            f"{layer}.self_attn.q_proj.weight": (16, 16),
            f"{layer}.self_attn.k_proj.weight": (8, 16),
            f"{layer}.self_attn.v_proj.weight": (8, 16),
            f"{layer}.self_attn.o_proj.weight": (16, 16),
            f"{layer}.mlp.gate_proj.weight": (24, 16),
            f"{layer}.mlp.up_proj.weight": (24, 16),
            f"{layer}.mlp.down_proj.weight": (16, 24),
        }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def write_model(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Callable[..., Path]:
    """Writes a model directory of a 2-layer Llama: 128 bytes of KV a token, 2,048 a block of 16."""

    def write(**changes: Any) -> Path:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path

    return write


@pytest.fixture
def sequence() -> Callable[..., ScheduledSequence]:
    """Builds what the scheduler would plan for one sequence; what is no field of it is of its sampling."""

    def build(
        request_id: str, tokens: list[int], computed: int, blocks: tuple[int, ...], **settings: Any
    ) -> ScheduledSequence:
        own = {name: settings.pop(name) for name in list(settings) if name in ScheduledSequence._fields}
        sampling = SamplingParams(**({"temperature": 0, "seed": 0} | settings))
        fields: dict[str, Any] = {"number": sum(request_id.encode()), "num_samples": 1, "num_generated": 0} | own
        return ScheduledSequence(
            request_id=request_id,
            token_ids=tuple(tokens),
            num_computed=computed,
            block_table=blocks,
            sampling=sampling,
            **fields,
        )

    return build
