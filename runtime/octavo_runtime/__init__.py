"""Octavo's runtime: `octavo serve` over HTTP, or offline.

from octavo_runtime import LLM, SamplingParams

llm = LLM("path/to/model")
print(llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo_runtime.domain import SamplingParams
    from octavo_runtime.llm import LLM, CompletionOutput, RequestOutput

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    # Lazily: LLM brings torch, which the server process and the command line do without.
    if name in {"LLM", "CompletionOutput", "RequestOutput"}:
        from octavo_runtime import llm

        return getattr(llm, name)
    if name == "SamplingParams":
        from octavo_runtime.domain import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
