"""How loaded a replica is, given how many sequences it runs.

A step of the engine takes about `a + b·n` seconds for n sequences: part of it is the same for every batch (reading the
weights), part grows with it. Thus n sequences get n / (a + b·n) tokens a second, and a replica with half of its slots
taken does more than half of its work: on a GPU some 65 %, on a CPU, where arithmetic counts, 90 % or more. With
x = n / slots, and r the share of the growing part in a full batch's step, the load is

    load(x) = x / (1 - r + r·x)        load(0) = 0, load(1) = 1, rising in x

r is fitted by linear regression of n / (tokens per second) on x, over all pods of the service, forgetting slowly.
Until the batch has varied enough to tell, it leans on a half.
"""

import math
from dataclasses import dataclass, replace

__all__ = ["ServiceCurve"]

MEMORY_SECONDS = 900.0
PRIOR_SHARE = 0.5
PRIOR_WEIGHT = 0.1
"""How much variation of x outweighs the prior: a sum of squares."""

MAX_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class ServiceCurve:
    """The fitted curve: exponentially weighted moments of x and of the time y of a step."""

    weight: float = 0.0
    mean_x: float = 0.0
    mean_y: float = 0.0
    square_x: float = 0.0
    product: float = 0.0

    @property
    def share(self) -> float:
        """r: the share of a full batch's step that grows with the batch."""
        if self.square_x <= 0 or self.mean_y <= 0:
            return PRIOR_SHARE
        slope = max(0.0, self.product / self.square_x)
        # At x = 1 a step takes mean_y + slope·(1 - mean_x); `slope` of it grows with the batch.
        fitted = min(MAX_SHARE, slope / (self.mean_y + slope * (1 - self.mean_x)))
        return (self.square_x * fitted + PRIOR_WEIGHT * PRIOR_SHARE) / (self.square_x + PRIOR_WEIGHT)

    def load(self, x: float) -> float:
        """Load of a replica of which the share x of the slots runs; more than 1 counts as 1."""
        x = min(1.0, x)
        return x / (1 - self.share * (1 - x))

    def age(self, seconds: float) -> "ServiceCurve":
        """The curve after some time: what it saw counts less."""
        kept = math.exp(-seconds / MEMORY_SECONDS)
        return replace(self, weight=self.weight * kept, square_x=self.square_x * kept, product=self.product * kept)

    def see(self, x: float, step: float) -> "ServiceCurve":
        """Takes in that a batch of x took `step` seconds a token."""
        weight = self.weight + 1
        off_x, off_y = x - self.mean_x, step - self.mean_y
        mean_x, mean_y = self.mean_x + off_x / weight, self.mean_y + off_y / weight
        # Welford's update: one factor with the old mean, the other with the new one.
        return ServiceCurve(
            weight,
            mean_x,
            mean_y,
            self.square_x + off_x * (x - mean_x),
            self.product + off_x * (step - mean_y),
        )
