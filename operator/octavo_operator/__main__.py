"""`octavo-operator`: the program."""

import asyncio
import logging
import os
import signal
import sys

from octavo_operator.errors import OperatorError, SettingsError
from octavo_operator.logs import configure_logs
from octavo_operator.settings import parse_settings

__all__ = ["main"]

logger = logging.getLogger("octavo_operator")

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = 2


def main() -> None:
    """The entry point."""
    # As process 1 of a container it would not hear SIGTERM without a handler: until it has started, it just ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.argv[1:2] == ["selftest"]:
        from octavo_operator.selftest.program import main as selftest

        sys.exit(selftest(sys.argv[2:]))
    if sys.argv[1:2] == ["replay"]:
        from octavo_operator.replay import main as replay

        sys.exit(replay(sys.argv[2:]))
    try:
        settings = parse_settings(sys.argv[1:], os.environ)
    except SettingsError as error:
        sys.stderr.write(f"octavo-operator: {error}\n")
        sys.exit(EXIT_BAD_SETTINGS)
    configure_logs(settings.log_level, json_lines=settings.json_logs)
    # Takes a second, which --help and a wrong flag need not wait for.
    from octavo_operator.handlers.run import run

    try:
        asyncio.run(run(settings))
    except SettingsError as error:
        logger.error("%s", error)  # noqa: TRY400 the message is all that helps
        sys.exit(EXIT_BAD_SETTINGS)
    except OperatorError as error:
        logger.error("%s", error)  # noqa: TRY400 the message is all that helps
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
