"""The engine process: scheduler, executor and model. The only part of the runtime that holds torch."""
