"""`octavo-operator`: the program."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from octavo_operator.errors import OperatorError, SettingsError
from octavo_operator.logs import configure_logs
from octavo_operator.settings import parse_settings

__all__ = ["main"]

logger = logging.getLogger("octavo_operator")

EXIT_FAILED = 1
EXIT_BAD_SETTINGS = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """The entry point."""
    # As process 1 of a container it would not hear SIGTERM without a handler: until it has started, it just ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever reads us has read enough, as head does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    match arguments:
        case ["selftest", *rest]:
            from octavo_operator.selftest.program import main as selftest

            return selftest(rest)
        case ["replay", *rest]:
            from octavo_operator.replay import main as replay

            return replay(rest)
    try:
        settings = parse_settings(arguments, os.environ)
    except SettingsError as error:
        sys.stderr.write(f"octavo-operator: {error}\n")
        return EXIT_BAD_SETTINGS
    configure_logs(settings.log_level, json_lines=settings.json_logs)
    # Takes a second, which --help and a wrong flag need not wait for.
    from octavo_operator.handlers.run import run

    try:
        asyncio.run(run(settings))
    except SettingsError as error:
        logger.error("%s", error)  # noqa: TRY400 the message is all that helps
        return EXIT_BAD_SETTINGS
    except OperatorError as error:
        logger.error("%s", error)  # noqa: TRY400 the message is all that helps
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    main()
