"""`kubectl-octavo`: the command line of the plugin. What a command needs is imported when it runs."""

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from octavo_operator.errors import OperatorError, Rejected, SettingsError, Unavailable
from octavo_operator.plugin.kubeconfig import Target, find_target

if TYPE_CHECKING:
    from octavo_operator.cluster.user import UserCluster
    from octavo_operator.plugin.screen import Paint

    Command = Callable[[UserCluster, Target, argparse.Namespace], Awaitable[int]]

__all__ = ["main", "run"]

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_UNANSWERED = 3

DESCRIPTION = "Ask about InferenceServices: whether they serve, and why not."

EPILOG = """\
examples:
  kubectl octavo status chat               does it serve; if not, why, since when, what to do
  kubectl octavo why chat                  what the operator decided, and from what

exit codes: 0 yes · 1 no, or not yet (each command says what that means) · 2 the command line cannot be understood ·
3 there is no answer: no way to the cluster, no such object, missing rights
"""

STATUS = """\
One screen: whether NAME serves; if not, why, since when and what to do; what the model needs; its pods; the last
Events. Needs the right to read InferenceServices, and shows whatever else you may read.

exit code: 0 when every desired pod runs the present spec and answers, 1 when not.
"""

STATUS_EXAMPLES = """\
examples:
  kubectl octavo status chat
  kubectl octavo status chat -n team-a --context production
  kubectl octavo status chat -o json | jq -r .reason
  watch -n 2 kubectl octavo status chat
"""

WHY = """\
The operator's last decisions about NAME, at most 32, with their reasons and what they were decided from: other pod
templates, steps of rollouts, children that were put right. They are kept in a ControllerRevision of the namespace.

exit code: 0, whatever was decided.
"""

WHY_EXAMPLES = """\
examples:
  kubectl octavo why chat
  kubectl octavo why chat --last 32
  kubectl octavo why chat -o json | jq '.decisions[] | select(.subject == "Rollout")'
"""


def main() -> None:
    """The entry point."""
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    try:
        sys.exit(asyncio.run(run(sys.argv[1:], os.environ)))
    except SettingsError as error:
        _complain(str(error))
        sys.exit(EXIT_USAGE)
    except OperatorError as error:
        _complain(str(error), _hint(error))
        sys.exit(EXIT_UNANSWERED)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever reads us has read enough, as head does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_OK)


async def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs one command; its exit code.

    Raises:
        OperatorError: there is no answer.
        SystemExit: for --help, and for a command line that is not understood.
    """
    given = _parser().parse_args(arguments)
    target = find_target(given.kubeconfig, given.context, given.namespace, environment)
    from octavo_operator.cluster.user import UserCluster

    cluster = await UserCluster.connect(target.kubeconfig, context=target.context, trust_env=True)
    try:
        command: Command = given.command
        return await command(cluster, target, given)
    finally:
        await cluster.close()


async def _status(cluster: "UserCluster", target: Target, arguments: argparse.Namespace) -> int:
    from octavo_operator.plugin.facts import gather
    from octavo_operator.plugin.status import as_json, is_ready, screen

    facts = await gather(cluster, target.namespace, arguments.name)
    now = _now()
    if arguments.output == "json":
        _print_json(as_json(facts, now))
    else:
        print(screen(facts, now, _paint()))
    return EXIT_OK if is_ready(facts) else EXIT_NO


async def _why(cluster: "UserCluster", target: Target, arguments: argparse.Namespace) -> int:
    from octavo_operator.plugin.facts import gather
    from octavo_operator.plugin.why import as_json, screen

    facts = await gather(cluster, target.namespace, arguments.name)
    if arguments.output == "json":
        _print_json(as_json(facts))
    else:
        print(screen(facts, _now(), last=arguments.last, paint=_paint()))
    return EXIT_OK


def _now() -> datetime:
    return datetime.now(UTC)


def _paint() -> "Paint":
    from octavo_operator.plugin.screen import coloured, plain

    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return plain if is_plain else coloured


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _complain(message: str, hint: str = "") -> None:
    sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))


def _hint(error: OperatorError) -> str:
    match error:
        case Unavailable() if "Unauthorized" in str(error):
            return "the API server does not know you: log in again, or choose another --context"
        case Unavailable():
            return "is it the right --context, and does `kubectl version` get an answer?"
        case Rejected(status=403):
            return "ask for this right, or use a --context that has it; the role `view` of the namespace covers status and why"
        case _:
            return ""


def _where() -> argparse.ArgumentParser:
    """The flags that say which cluster and namespace; not given, they leave no trace."""
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = flags.add_argument_group("where")
    group.add_argument("-n", "--namespace", help="its namespace (default: the context's)")
    group.add_argument("--context", help="context of the kubeconfig (default: the current one)")
    group.add_argument("--kubeconfig", metavar="PATH", help="default: $KUBECONFIG, else ~/.kube/config")
    return flags


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl octavo",
        description=DESCRIPTION,
        epilog=EPILOG,
        parents=[_where()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # They are taken before and after the command.
    parser.set_defaults(kubeconfig=None, context=None, namespace=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        name: str,
        what: str,
        description: str,
        examples: str,
        command: "Command",
    ) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name,
            help=what,
            description=description,
            epilog=examples,
            parents=[_where()],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        one.set_defaults(command=command)
        return one

    status = add("status", "does it serve; if not, why", STATUS, STATUS_EXAMPLES, _status)
    why = add("why", "what the operator decided, and why", WHY, WHY_EXAMPLES, _why)
    for one in (status, why):
        one.add_argument("name", metavar="NAME", help="the InferenceService")
        _add_output(one)
    why.add_argument("--last", type=_count, default=10, metavar="N", help="how many decisions (default: 10)")
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default: text")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)
