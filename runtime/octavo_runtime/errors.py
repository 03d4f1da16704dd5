"""What ends the runtime, and what a request may do wrong.

OctavoError
├── StartError               ends the process; `exit_code` and `code` are the contract of docs/contract.md
│   ├── InternalError             1
│   ├── BadFlags                  2
│   ├── ModelNotFound            10
│   ├── BadWeights               11
│   ├── UnsupportedModel         12
│   ├── NotEnoughMemoryForWeights 13
│   ├── NotEnoughMemoryForKV     14
│   ├── DeviceUnavailable        15
│   ├── DeviceLost               16
│   ├── EngineDied               17
│   └── CannotListen             18
└── InvalidRequest           ends one request: HTTP 400 (404 for an unknown model, 413 for a body too large)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

__all__ = [
    "BadFlags",
    "BadWeights",
    "CannotListen",
    "DeviceLost",
    "DeviceUnavailable",
    "EngineDied",
    "InternalError",
    "InvalidRequest",
    "ModelNotFound",
    "NotEnoughMemoryForKV",
    "NotEnoughMemoryForWeights",
    "OctavoError",
    "StartError",
    "UnsupportedModel",
    "readable",
]


class OctavoError(Exception):
    """Any error with a sentence for the user."""


class StartError(OctavoError):
    """Ends the process with `exit_code`; its fields become the pod's termination message.

    Attributes:
        message: What was wrong, naming the file, flag or number.
        hint: What to do about it.
        needed: Bytes that were wanted, where the cause is memory.
        available: Bytes that there were.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", needed: int | None = None, available: int | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.needed = needed
        self.available = available

    @property
    def code(self) -> str:
        """The stable name of the cause, fit for a condition's reason."""
        return type(self).__name__

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class InternalError(StartError):
    """A fault of ours."""


class BadFlags(StartError):
    """An unknown flag or a value that is not allowed."""

    exit_code = 2


class ModelNotFound(StartError):
    """No such directory, or no config.json in it."""

    exit_code = 10


class BadWeights(StartError):
    """A shard is missing or truncated, a tensor is missing or of the wrong shape."""

    exit_code = 11


class UnsupportedModel(StartError):
    """An architecture, or a feature of the configuration, that Octavo does not run."""

    exit_code = 12


class NotEnoughMemoryForWeights(StartError):
    """The weights do not fit."""

    exit_code = 13


class NotEnoughMemoryForKV(StartError):
    """No room for the KV of one request of the longest length."""

    exit_code = 14


class DeviceUnavailable(StartError):
    """A GPU was asked for and none can be used."""

    exit_code = 15


class DeviceLost(StartError):
    """The device failed while serving."""

    exit_code = 16


class EngineDied(StartError):
    """The engine process ended."""

    exit_code = 17


class CannotListen(StartError):
    """The address is taken or not allowed."""

    exit_code = 18


class InvalidRequest(OctavoError):
    """One request asks for what cannot be done.

    Attributes:
        message: What was wrong and what to do.
        param: The field at fault, by its name in the request's body.
        code: OpenAI's code, such as `context_length_exceeded`, or None.
        status: HTTP status.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


@contextmanager
def readable(kind: type[StartError]) -> Iterator[None]:
    """Turns what the file system says of a model's file into an error of this kind; a decorator as well."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"{error.filename} cannot be read: {error.strerror}",
            hint=f"Octavo runs as the user with id {os.geteuid()}: let that one read all files of the model.",
        ) from error
