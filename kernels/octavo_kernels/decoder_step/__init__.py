"""A decoder's whole step in one native call. README.md says what it does and what it supports."""

from __future__ import annotations

from octavo_kernels.decoder_step.native import DecoderStep, LayerWeights, unsupported

__all__ = ["DecoderStep", "LayerWeights", "unsupported"]
