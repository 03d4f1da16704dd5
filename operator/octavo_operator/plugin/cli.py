"""`kubectl-octavo`: the command line of the plugin. What a command needs is imported when it runs."""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence

from octavo_operator.errors import OperatorError, Rejected, SettingsError, SpecInvalid, Unavailable
from octavo_operator.plugin.kubeconfig import find_target
from octavo_operator.settings import NAMESPACE

__all__ = ["main", "run"]

EXIT_USAGE = 2
EXIT_UNANSWERED = 3
EXIT_INTERRUPTED = 130

DESCRIPTION = """\
Ask about InferenceServices: whether they serve and why not, and what a change
would do.
"""

EPILOG = """\
examples:
  kubectl octavo status chat         does it serve; if not, why, what to do
  kubectl octavo why chat            what the operator decided, and from what
  kubectl octavo plan -f chat.yaml   what applying this would do: pods, memory
  kubectl octavo logs chat -f        what all its pods say, as they say it
  kubectl octavo top chat            load and latency of each pod

exit codes:
  0  yes
  1  no, or not yet; each command says what that means
  2  the command line, or a file that it names, cannot be used
  3  there is no answer: no way to the cluster, no such object, missing rights
"""

STATUS = """\
One screen: whether NAME serves; if not, why, since when and what to do; what
the model needs; its pods; the last Events. Needs the right to read
InferenceServices, and shows whatever else you may read.

exit code: 0 when every desired pod runs the present spec and answers, 1 when
not.
"""

STATUS_EXAMPLES = """\
examples:
  kubectl octavo status chat
  kubectl octavo status chat -n team-a --context production
  kubectl octavo status chat -o json | jq -r .reason
  watch -n 2 kubectl octavo status chat
"""

WHY = """\
The operator's last decisions about NAME, at most 32, with their reasons and
what they were decided from: other pod templates, steps of rollouts, children
that were put right, replicas. They are kept in a ControllerRevision of the
namespace.

With --inputs, as lines of JSON, what the autoscaler decided in the last hour,
whether or not it changed anything, each with all that it was made of:
`octavo-operator replay` decides again from that, with other settings too. The
operator that leads keeps it in its memory, and is asked through the API server:
needs the rights to list pods and to get pods/proxy in the operator's namespace.

exit code: 0, whatever was decided.
"""

WHY_EXAMPLES = """\
examples:
  kubectl octavo why chat
  kubectl octavo why chat --last 32
  kubectl octavo why chat -o json | jq '.decisions[].because'
  kubectl octavo why chat --inputs > chat.jsonl
  octavo-operator replay chat.jsonl --set targetQueueLength=2
"""

PLAN = """\
What applying FILE would do, without applying it:
  - what the API server says to it: a dry run of kubectl apply, admission's
    errors as they are
  - whether pods would be replaced, or only settings changed
  - memory of the weights and of the KV cache, and how many requests fit: from
    the pods that run, where model and flags stay as they are; otherwise
    `octavo plan` runs in a pod of yours, restricted, for some seconds, and is
    deleted
  - which nodes could take such a pod now. Needs the rights to list nodes, and
    pods of all namespaces

What the operator would render is told by this program, which knows one version
of the operator: its own.

exit code: 0 when it would be accepted, 1 when it is refused or the model could
not be served.
"""

PLAN_EXAMPLES = """\
examples:
  kubectl octavo plan -f chat.yaml
  kubectl octavo plan -f chat.yaml --no-pod            start nothing
  kubectl octavo plan -f chat.yaml --gpu-memory 80Gi   on a GPU of this size
  kustomize build . | kubectl octavo plan -f - -o json | jq '.objects[]'
"""

LOGS = """\
What all pods of NAME say, the server of each and the plan of those where it
failed: in the order of the times, with the pod's short name before each line.
With -f new pods are heard as they come. Needs the right to read pods/log.

exit code: 0, or 1 when no pod has said anything.
"""

LOGS_EXAMPLES = """\
examples:
  kubectl octavo logs chat
  kubectl octavo logs chat -f --tail 0   from now on
  kubectl octavo logs chat --since 600   of the last ten minutes
  kubectl octavo logs chat --previous    of those before their last restart
"""

TOP = """\
For each pod: usage of the KV cache, requests that run and wait, generated
tokens per second, and the time to the first token, of the requests that had
theirs between two looks at its metrics. Looks every 2 s, in place on a
terminal; once when the output is no terminal. Asks the pods through the API
server: needs the right to get pods/proxy.

exit code: 0, or 1 when no pod answers.
"""

TOP_EXAMPLES = """\
examples:
  kubectl octavo top chat
  kubectl octavo top --all -n team-a             all of a namespace
  kubectl octavo top chat --once --interval 10   the mean of ten seconds
  kubectl octavo top chat -o json | jq '.pods[].cacheUsage'
"""


def main() -> None:
    """The entry point."""
    logging.basicConfig(format="%(message)s", level=logging.ERROR)
    try:
        sys.exit(asyncio.run(_run_until_signal(sys.argv[1:])))
    except SettingsError as error:
        _complain(str(error))
        sys.exit(EXIT_USAGE)
    except OperatorError as error:
        _complain(str(error), _hint(error))
        sys.exit(EXIT_UNANSWERED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # Whoever reads us has read enough, as head does.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _run_until_signal(arguments: Sequence[str]) -> int:
    """SIGTERM and Ctrl-C end a command when what it has made in the cluster is deleted."""
    task = asyncio.current_task()
    assert task is not None
    # asyncio itself leaves SIGINT alone where it is ignored, as in the background of a script.
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await run(arguments, os.environ)


async def run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs one command; its exit code.

    Raises:
        OperatorError: there is no answer.
        SystemExit: for --help, and for a command line that is not understood.
    """
    given = _parser().parse_args(arguments)
    target = find_target(given.kubeconfig, given.context, given.namespace, environment)
    # Half a second, which --help and a wrong flag need not wait for.
    from octavo_operator.cluster.user import UserCluster
    from octavo_operator.plugin import commands

    cluster = await UserCluster.connect(target.kubeconfig, context=target.context, trust_env=True)
    try:
        match given.command:
            case "status":
                return await commands.status(cluster, target, given)
            case "why":
                return await commands.why(cluster, target, given)
            case "plan":
                return await commands.plan(cluster, target, given)
            case "logs":
                return await commands.logs(cluster, target, given)
            case _:
                return await commands.top(cluster, target, given)
    finally:
        await cluster.close()


def _complain(message: str, hint: str = "") -> None:
    sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))


def _hint(error: OperatorError) -> str:
    match error:
        case Unavailable() if "Unauthorized" in str(error):
            return "the API server does not know you: log in again, or choose another --context"
        case Unavailable():
            return "is it the right --context, and does `kubectl version` get an answer?"
        case Rejected(status=403):
            return "ask for this right, or use a --context that has it; the role `view` of the namespace covers status, why and logs"
        case SpecInvalid():
            return "the cluster's CRD is newer than this program: install kubectl-octavo of the operator's version"
        case _:
            return ""


def _where() -> argparse.ArgumentParser:
    """The flags that say which cluster and namespace; not given, they leave no trace."""
    flags = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    group = flags.add_argument_group("where")
    group.add_argument("-n", "--namespace", type=_namespace, help="its namespace (default: the context's)")
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
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")

    def add(name: str, what: str, description: str, examples: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=what,
            description=description,
            epilog=examples,
            parents=[_where()],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    status = add("status", "does it serve; if not, why", STATUS, STATUS_EXAMPLES)
    why = add("why", "what the operator decided, and why", WHY, WHY_EXAMPLES)
    plan = add("plan", "what a manifest would do", PLAN, PLAN_EXAMPLES)
    logs = add("logs", "what all its pods say", LOGS, LOGS_EXAMPLES)
    top = add("top", "load and latency of each pod", TOP, TOP_EXAMPLES)
    for one in (status, why, logs):
        one.add_argument("name", type=_name, metavar="NAME", help="the InferenceService")
    why.add_argument(
        "--operator-namespace",
        type=_name,
        metavar="NAMESPACE",
        help="where the operator runs, with --inputs (default: octavo-system)",
    )
    form = why.add_mutually_exclusive_group()
    form.add_argument("--last", type=_count, default=10, metavar="N", help="how many decisions (default: 10)")
    form.add_argument(
        "--inputs", action="store_true", help="what the autoscaler decided, with its inputs, for a replay"
    )
    plan.add_argument(
        "-f", "--filename", dest="file", metavar="FILE", required=True, help="the manifest; - reads it from the input"
    )
    plan.add_argument("--no-pod", action="store_true", help="start no pod: tell what is known without")
    plan.add_argument(
        "--runtime-image", metavar="IMAGE", help="the operator's image of the runtime, for a first InferenceService"
    )
    plan.add_argument("--gpu-memory", metavar="SIZE", help="plan for a GPU with so much memory, such as 80Gi")
    when = logs.add_mutually_exclusive_group()
    when.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    when.add_argument("-p", "--previous", action="store_true", help="of the containers before their last restart")
    logs.add_argument("--tail", type=_number, metavar="N", help="the last lines of each container (default: all)")
    logs.add_argument("--since", type=_count, metavar="SECONDS", help="only lines that are no older")
    which = top.add_mutually_exclusive_group(required=True)
    which.add_argument("name", type=_name, metavar="NAME", nargs="?", help="the InferenceService")
    which.add_argument("--all", action="store_true", help="all of the namespace")
    top.add_argument("--once", action="store_true", help="one table, then end")
    top.add_argument("--interval", type=_count, default=2, metavar="SECONDS", help="between two looks (default: 2)")
    for one in (status, why, plan, top):
        one.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default: text")
    return parser


def _name(text: str) -> str:
    """What becomes a part of an address must be a name, not a path."""
    if not re.fullmatch(NAMESPACE, text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name: lower-case letters, digits and '-', 63 at most")
    return text


def _namespace(text: str) -> str:
    """An empty one is that of the context, as it is for kubectl."""
    return _name(text) if text else text


def _count(text: str) -> int:
    if _number(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
