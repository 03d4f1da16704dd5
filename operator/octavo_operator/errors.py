"""Everything the operator raises on purpose.

OperatorError
├── SettingsError      a flag or an environment variable that cannot be used
├── SpecInvalid        an object that passed admission, but not this version of the operator
├── NotLeading         another operator may lead by now: this one must write nothing any more
└── ClusterError       what the API server answered
    ├── Unavailable    not reachable, overloaded or starting: try again soon
    ├── Stale          the object changed under us: look again
    ├── Gone           the object, its kind or its namespace is no longer there
    └── Rejected       refused for good: only a change of the object or the cluster helps
"""

__all__ = [
    "ClusterError",
    "Gone",
    "NotLeading",
    "OperatorError",
    "Rejected",
    "SettingsError",
    "SpecInvalid",
    "Stale",
    "Unavailable",
]


class OperatorError(Exception):
    """The root: catch it to catch everything below."""


class SettingsError(OperatorError):
    """A flag or an environment variable cannot be used; the message says which and what to write instead."""


class SpecInvalid(OperatorError):
    """The object holds a field or a value that this version of the operator does not know."""


class NotLeading(OperatorError):
    """This process does not lead, or not any more; the message says why."""


class ClusterError(OperatorError):
    """The API server did not do what was asked."""


class Unavailable(ClusterError):
    """The API server is not reachable, overloaded or starting."""


class Stale(ClusterError):
    """The object was replaced or changed since it was observed."""


class Gone(ClusterError):
    """The object, its kind or its namespace does not exist (any more)."""


class Rejected(ClusterError):
    """The API server refused; it would refuse the same request again.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
