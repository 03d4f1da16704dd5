"""A model directory with random weights: the shape of Qwen3-0.6B, or of something tiny for a dry run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["write_model"]

_COMMON = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "eos_token_id": 0,
}
_QWEN3_06B = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
_TINY = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 128,
    "vocab_size": 200,
    "torch_dtype": "float32",
}


def write_model(folder: Path, *, dry: bool, device: torch.device) -> Path:
    """Writes config.json and model.safetensors, unless they are there; returns the folder.

    Args:
        folder: Where.
        dry: The tiny one.
        device: What draws the weights.
    """
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = _COMMON | (_TINY if dry else _QWEN3_06B)
    hidden, mlp, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_rows, kv_rows = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.self_attn.q_norm.weight": (dim,),
            f"{layer}.self_attn.k_norm.weight": (dim,),
            f"{layer}.self_attn.q_proj.weight": (q_rows, hidden),
            f"{layer}.self_attn.k_proj.weight": (kv_rows, hidden),
            f"{layer}.self_attn.v_proj.weight": (kv_rows, hidden),
            f"{layer}.self_attn.o_proj.weight": (hidden, q_rows),
            f"{layer}.mlp.gate_proj.weight": (mlp, hidden),
            f"{layer}.mlp.up_proj.weight": (mlp, hidden),
            f"{layer}.mlp.down_proj.weight": (hidden, mlp),
        }
    generator = torch.Generator(device).manual_seed(0)
    dtype = getattr(torch, config["torch_dtype"])
    tensors = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            tensors[name] = torch.ones(shape, dtype=dtype)
        else:
            # Columns of a variance that keeps the residual stream's size.
            drawn = torch.randn(shape, generator=generator, device=device) * shape[1] ** -0.5
            tensors[name] = drawn.to("cpu", dtype)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")  # last: now the folder is whole
    return folder
