"""The engine process: scheduler, executor and model. The only part of the runtime that holds torch."""

import os

# Read when OpenMP is loaded, so before torch. Threads that wait asleep: by default they spin, and where another process
# wants the processor, each of a step's hundreds of parallel regions then waits for one that spins (measured beside a
# busy neighbour on two cores: 2 to 4 tokens per second spinning, 8 to 11 asleep).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
