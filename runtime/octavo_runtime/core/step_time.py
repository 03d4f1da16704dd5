"""How long a step takes: seconds = base + per_token x tokens + per_context x context of the decoding sequences.

Fitted online by recursive least squares with forgetting, from the steps as they are measured.
Source: Ljung, System Identification, section 11.2.
"""

from __future__ import annotations

import numpy as np

__all__ = ["StepTimeModel"]

_FORGETTING = 0.999
_SCALE = np.array([1.0, 1e-3, 1e-5])
"""Typical sizes of 1, tokens and context are brought near to each other, which keeps the arithmetic well conditioned."""


class StepTimeModel:
    """A fitted line over steps. Until some were seen it knows nothing."""

    def __init__(self) -> None:
        self._weights = np.zeros(3)
        self._covariance = np.eye(3) * 1e4
        self._seen = 0

    @property
    def is_fitted(self) -> bool:
        """Whether enough steps were seen to go by it."""
        return self._seen >= 8

    def observe(self, tokens: int, context: int, seconds: float) -> None:
        """Takes in a step: its tokens, the sum of its decoding sequences' context, and how long it took."""
        features = np.array([1.0, tokens, context]) * _SCALE
        gain = self._covariance @ features
        gain /= _FORGETTING + features @ gain
        self._weights += gain * (seconds - features @ self._weights)
        self._covariance = (self._covariance - np.outer(gain, features @ self._covariance)) / _FORGETTING
        # Steps that are all alike must not blow it up.
        self._covariance = np.clip((self._covariance + self._covariance.T) / 2, -1e6, 1e6)
        self._seen += 1

    def seconds(self, tokens: int, context: int) -> float:
        """How long such a step will take."""
        return float(np.array([1.0, tokens, context]) * _SCALE @ self._weights)

    def tokens_within(self, seconds: float, context: int) -> int:
        """How many tokens a step may have that shall take no longer; 0 when not even one fits."""
        per_token = float(self._weights[1] * _SCALE[1])
        rest = seconds - self.seconds(0, context)
        if per_token <= 0:
            return 1 << 30 if rest > 0 else 0
        return max(0, int(rest / per_token))
