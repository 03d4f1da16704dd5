"""The scheduler and its block pool: pure, without torch, clock or I/O."""
