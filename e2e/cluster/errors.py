"""The one error that a user of the tool sees."""


class ClusterError(Exception):
    """Something that the person at the keyboard can act on; its text says what and how."""
