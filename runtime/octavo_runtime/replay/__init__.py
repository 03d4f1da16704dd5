"""Replays a load through the scheduler in virtual time: what other settings, or other rates, would have given.

The scheduler is the very same that serves; only the executor is made up of a model of how long steps take. So a
replay of an hour takes seconds, is the same every time, and needs no model and no device.
"""

from octavo_runtime.replay.executor import SimulatedExecutor
from octavo_runtime.replay.fit import fit_step_time
from octavo_runtime.replay.load import ClosedLoop, OpenLoop
from octavo_runtime.replay.metrics import Measured, Objectives, RequestTimes, latencies
from octavo_runtime.replay.reconstruct import replay_requests
from octavo_runtime.replay.requests import EOS, FIRST_FREE_TOKEN, ReplayRequest
from octavo_runtime.replay.simulation import Core, simulate
from octavo_runtime.replay.step_time import StepTimeModel
from octavo_runtime.replay.trace import Trace, TraceError, TraceHeader, TraceLine, TraceWriter, read_trace

__all__ = [
    "EOS",
    "FIRST_FREE_TOKEN",
    "ClosedLoop",
    "Core",
    "Measured",
    "Objectives",
    "OpenLoop",
    "ReplayRequest",
    "RequestTimes",
    "SimulatedExecutor",
    "StepTimeModel",
    "Trace",
    "TraceError",
    "TraceHeader",
    "TraceLine",
    "TraceWriter",
    "fit_step_time",
    "latencies",
    "read_trace",
    "replay_requests",
    "simulate",
]
