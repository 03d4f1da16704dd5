"""What each command does: reads, writes its screen or JSON, and tells its exit code."""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime

from octavo_operator.api.names import INFERENCE_SERVICE, NODE, OPERATOR, OWNER_LABEL, POD, REVISION, Manifest
from octavo_operator.cluster.user import UserCluster
from octavo_operator.core.arguments import PORT
from octavo_operator.errors import ClusterError, Gone, Rejected, SettingsError, Unavailable
from octavo_operator.plugin import plan as plans
from octavo_operator.plugin import status as statuses
from octavo_operator.plugin import top as tops
from octavo_operator.plugin import why as reasons
from octavo_operator.plugin.facts import Facts, find_service, gather, if_allowed
from octavo_operator.plugin.fit import NodeFit, fits, not_looked_at
from octavo_operator.plugin.kubeconfig import Target
from octavo_operator.plugin.logs import Source, Stamped, follow, merged, read, sources
from octavo_operator.plugin.plan_pod import plan_pod, run_plan
from octavo_operator.plugin.pods import state_of
from octavo_operator.plugin.screen import Paint, coloured, plain

__all__ = ["logs", "plan", "status", "top", "why"]

EXIT_OK = 0
EXIT_NO = 1
EXIT_UNANSWERED = 3
OPERATOR_NAMESPACE = "octavo-system"
"""Where the documentation installs it."""

OPERATOR_PORT = 8080
"""Of its web server, in the chart."""

CLEAR = "\x1b[H\x1b[J"
"""The cursor to the top left, and nothing below it."""

COLOURS = ("green", "yellow", "cyan", "magenta", "blue")
"""Of the pods in a log, in turn."""


async def status(cluster: UserCluster, target: Target, given: argparse.Namespace) -> int:
    """`kubectl octavo status`."""
    facts = await gather(cluster, target.namespace, given.name)
    now = _now()
    if given.output == "json":
        _print_json(statuses.as_json(facts, now))
    else:
        print(statuses.screen(facts, now, _paint()))
    return EXIT_OK if statuses.is_ready(facts) else EXIT_NO


async def why(cluster: UserCluster, target: Target, given: argparse.Namespace) -> int:
    """`kubectl octavo why`."""
    if given.inputs:
        if given.output == "json":
            raise SettingsError("--inputs are lines of JSON already: leave -o json out")
        await find_service(cluster, target.namespace, given.name)
        operators = given.operator_namespace or OPERATOR_NAMESPACE
        sys.stdout.write(await _inputs(cluster, operators, target.namespace, given.name))
        return EXIT_OK
    if given.operator_namespace is not None:
        raise SettingsError("--operator-namespace goes with --inputs: all else is in the namespace of the object")
    service = await find_service(cluster, target.namespace, given.name)
    missing: list[str] = []
    labels = f"{OWNER_LABEL}={given.name}"
    revisions = await if_allowed(cluster.list(REVISION, target.namespace, labels=labels), (), missing)
    facts = Facts(service, revisions=revisions, missing=tuple(missing))
    if given.output == "json":
        _print_json(reasons.as_json(facts))
    else:
        print(reasons.screen(facts, _now(), last=given.last, paint=_paint()))
    return EXIT_OK


async def plan(cluster: UserCluster, target: Target, given: argparse.Namespace) -> int:
    """`kubectl octavo plan`."""
    code, objects = await _dry_run(given)
    if code:
        await cluster.list(INFERENCE_SERVICE, target.namespace)  # no way to the cluster is no verdict
        return EXIT_NO
    services = [one for one in objects if one.get("kind") == INFERENCE_SERVICE.kind]
    if not services:
        raise SettingsError(f"-f {given.file}: there is no InferenceService in it")
    missing: list[str] = []
    nodes = await if_allowed(cluster.list(NODE, None), None, missing)
    pods = None
    if nodes is not None:
        running = "status.phase!=Succeeded,status.phase!=Failed"
        pods = await if_allowed(cluster.list(POD, None, fields=running), None, missing)
    told, exit_code = [], EXIT_OK
    for one in services:
        facts = await _present(cluster, one)
        image = given.runtime_image or (plans.runtime_image_of(facts) if facts is not None else None)
        change = plans.change(one, facts, image)
        needs = await _needs(cluster, one, change, facts, given, image)
        room: tuple[NodeFit, ...] | None = None
        spec = change.template["spec"]
        if nodes is not None and pods is not None:
            room = fits(spec, nodes, pods)
        if needs.fault:
            exit_code = EXIT_NO
        if given.output == "json":
            told.append(plans.as_json(change, needs, room, missing))
        else:
            print(("\n" if told else "") + plans.screen(change, needs, room, not_looked_at(spec), missing, _paint()))
            told.append({})
    if given.output == "json":
        _print_json({"objects": told})
    return exit_code


async def logs(cluster: UserCluster, target: Target, given: argparse.Namespace) -> int:
    """`kubectl octavo logs`."""
    await find_service(cluster, target.namespace, given.name)
    query = [("tailLines", str(given.tail))] if given.tail is not None else []
    query += [("sinceSeconds", str(given.since))] if given.since is not None else []
    query += [("previous", "true")] if given.previous else []
    shown: dict[str, str] = {}

    def write(source: Source, text: str) -> None:
        colour = shown.setdefault(source.prefix, COLOURS[len(shown) % len(COLOURS)])
        width = max(map(len, shown))
        sys.stdout.write(f"{paint(source.prefix.ljust(width), colour)} | {text}\n")
        if given.follow:
            sys.stdout.flush()

    paint = _paint()
    if given.follow:
        await follow(cluster, target.namespace, given.name, query, write, _tell)
    pods = await cluster.list(POD, target.namespace, labels=f"{OWNER_LABEL}={given.name}")
    found = sources(given.name, pods)
    for source in found:
        shown[source.prefix] = COLOURS[len(shown) % len(COLOURS)]
    missing: list[str] = []
    texts = [(one, await _log(cluster, target.namespace, one, query, missing)) for one in found]
    for source, text in merged(texts):
        write(source, text)
    for sentence in missing:
        sys.stderr.write(f"not shown: {sentence}\n")
    if not found:
        sys.stderr.write(f"{given.name} has no pod that has started: `kubectl octavo status {given.name}` tells why\n")
    return EXIT_OK if any(text for _, text in texts) else EXIT_NO


async def top(cluster: UserCluster, target: Target, given: argparse.Namespace) -> int:
    """`kubectl octavo top`."""
    if given.name is not None:
        await find_service(cluster, target.namespace, given.name)
    once = given.once or given.output == "json" or not sys.stdout.isatty()
    before, _, _ = await _look(cluster, target.namespace, given.name)
    while True:
        await asyncio.sleep(given.interval)
        try:
            after, states, missing = await _look(cluster, target.namespace, given.name)
        except Unavailable as error:
            if once:
                raise
            print(f"{CLEAR}no answer: {error}", flush=True)
            continue
        lines = tops.rows(states, before, after)
        before = after
        if given.output == "json":
            _print_json(tops.as_json(lines, missing))
        else:
            text = tops.screen(lines, missing, _paint())
            print(text if once else f"{CLEAR}{text}", flush=True)
        if once:
            return EXIT_OK if after else EXIT_UNANSWERED if missing else EXIT_NO


async def _look(
    cluster: UserCluster, namespace: str, name: str | None
) -> tuple[dict[str, tops.Sample], dict[str, str], list[str]]:
    """The metrics of each pod that answers, the state of all pods, and what may not be read."""
    labels = OWNER_LABEL if name is None else f"{OWNER_LABEL}={name}"
    pods = await cluster.list(POD, namespace, labels=labels)
    missing: list[str] = []
    names = sorted(str(pod["metadata"]["name"]) for pod in pods)
    samples = await asyncio.gather(*(_sample(cluster, namespace, one, missing) for one in names))
    states = {pod["metadata"]["name"]: state_of(pod, _now())[0] for pod in pods}
    found = {one: sample for one, sample in zip(names, samples, strict=True) if sample is not None}
    return found, {one: states[one] for one in names}, missing[:1]


async def _sample(cluster: UserCluster, namespace: str, pod: str, missing: list[str]) -> tops.Sample | None:
    try:
        text = await if_allowed(cluster.ask_pod(namespace, pod, PORT, "/metrics"), None, missing)
        return None if text is None else tops.read_metrics(text, time.monotonic())
    except (Rejected, Unavailable, ValueError):
        return None  # it has no address yet, loads, or has just gone: its state says which


async def _inputs(cluster: UserCluster, operators: str, namespace: str, name: str) -> str:
    """The recording of the operator that leads: the others answer that they have none."""
    pods = await cluster.list(POD, operators, labels=f"app.kubernetes.io/name={OPERATOR}")
    if not pods:
        raise Gone(f"no operator runs in namespace {operators}: name its namespace with --operator-namespace")
    refusals: list[ClusterError] = []
    for pod in pods:
        try:
            path = f"/autoscaling/{namespace}/{name}"
            return await cluster.ask_pod(operators, pod["metadata"]["name"], OPERATOR_PORT, path)
        except (Gone, Unavailable) as error:
            refusals.append(error)
    # One that does not answer may be the one that leads.
    raise next((error for error in refusals if isinstance(error, Unavailable)), refusals[0])


async def _log(
    cluster: UserCluster, namespace: str, source: Source, query: list[tuple[str, str]], missing: list[str]
) -> list[Stamped]:
    try:
        return [line async for line in read(cluster, namespace, source, query)]
    except Gone:
        return []
    except Rejected as error:
        if error.status == 403:
            raise
        missing.append(f"{source.prefix}: {error}")
        return []


async def _dry_run(given: argparse.Namespace) -> tuple[int, list[Manifest]]:
    """The API server's verdict in kubectl's words, which go to stderr; the objects when it is good.

    Raises:
        SettingsError: there is no such file, or no kubectl that could be asked: that is no verdict.
    """
    for file in given.file.split(","):  # as kubectl takes it: patterns and addresses are its own business
        if file != "-" and not re.search(r"://|[*?[]", file) and not os.path.exists(file):  # noqa: ASYNC240, PTH110 one look, at any name
            raise SettingsError(f"-f {file}: there is no such file")
    where = [(f"--{name}", getattr(given, name)) for name in ("namespace", "context", "kubeconfig")]
    flags = [f"{flag}={value}" for flag, value in where if value is not None]
    try:
        process = await asyncio.create_subprocess_exec(
            *("kubectl", "apply", "--dry-run=server", "--output=json", f"--filename={given.file}", *flags),
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise SettingsError(f"there is no kubectl on the PATH, which does the dry run: {error}") from error
    output, _ = await process.communicate()
    if process.returncode:
        return process.returncode, []
    try:
        answer = json.loads(output)
        return 0, answer["items"] if answer.get("kind") == "List" else [answer]
    except (ValueError, KeyError, AttributeError) as error:
        said = output[:200].decode(errors="replace")
        raise SettingsError(f"kubectl's dry run is no JSON of an object: {said or 'nothing'}") from error


async def _present(cluster: UserCluster, dry: Manifest) -> Facts | None:
    try:
        return await gather(cluster, dry["metadata"]["namespace"], dry["metadata"]["name"])
    except Gone:
        return None


async def _needs(
    cluster: UserCluster,
    dry: Manifest,
    change: plans.Change,
    facts: Facts | None,
    given: argparse.Namespace,
    image: str | None,
) -> plans.Needs:
    if facts is not None and change.plans_as_before and given.gpu_memory is None:
        known = plans.known_needs(facts)
        if known is not None:
            return known
    if given.no_pod:
        return plans.Needs(unknown="--no-pod was given, and no pod has planned this yet")
    if image is None and not dry["spec"].get("runtime", {}).get("image"):
        return plans.Needs(
            unknown="which image the operator gives its pods is not known here: name it with --runtime-image"
        )
    more = [f"--gpu-memory={given.gpu_memory}"] if given.gpu_memory is not None else []
    manifest = plan_pod(change.name, change.namespace, change.template, more)
    needs = await run_plan(cluster, manifest, _tell)
    if needs.max_model_len is None and isinstance(longest := dry["spec"].get("runtime", {}).get("maxModelLen"), int):
        return replace(needs, max_model_len=longest)
    return needs


def _tell(text: str) -> None:
    """What a person should know who waits."""
    if sys.stderr.isatty():
        sys.stderr.write(f"{text} …\n")


def _now() -> datetime:
    return datetime.now(UTC)


def _paint() -> Paint:
    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return plain if is_plain else coloured


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
