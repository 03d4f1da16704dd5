"""The values that every layer of the runtime speaks in. Frozen, without behaviour, importing nothing heavy."""

from octavo_runtime.domain.engine import INT8_WEIGHTS, EngineConfig, EngineInfo, SchedulerConfig
from octavo_runtime.domain.requests import Event, FinishReason, Request, SamplingParams
from octavo_runtime.domain.stats import SchedulerStats
from octavo_runtime.domain.steps import BlockCopy, CopyKind, ScheduledSequence, StepPlan, StepResult

__all__ = [
    "INT8_WEIGHTS",
    "BlockCopy",
    "CopyKind",
    "EngineConfig",
    "EngineInfo",
    "Event",
    "FinishReason",
    "Request",
    "SamplingParams",
    "ScheduledSequence",
    "SchedulerConfig",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
]
