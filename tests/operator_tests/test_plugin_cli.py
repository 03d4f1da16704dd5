import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import yaml

from octavo_operator.errors import Gone, Rejected, SettingsError, Unavailable
from octavo_operator.plugin.kubeconfig import Target, find_target
from tests.operator_tests.plugin_api import APPS, CORE, OURS, Api, change_user, kubeconfig, serve
from tests.operator_tests.plugin_objects import SERVING


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serve(tmp_path) as scripted:
        yield scripted


@pytest.fixture
def serving(api: Api) -> Api:
    api.answers[f"{OURS}/namespaces/team-a/inferenceservices/chat"] = 200, SERVING.service
    api.answers[f"{APPS}/deployments/chat"] = 200, SERVING.deployment
    api.has(f"{CORE}/pods", *SERVING.pods)
    api.has(f"{CORE}/events", *SERVING.events)
    api.has(f"{APPS}/controllerrevisions")
    return api


async def test_status_reads_the_contexts_namespace(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert await serving.ask("status", "chat") == 0
    assert capsys.readouterr().out.startswith("chat in namespace team-a serves")


async def test_status_namespace_before_and_after_the_command(serving: Api) -> None:
    for arguments in (("-n", "team-b", "status", "chat"), ("status", "chat", "-n", "team-b")):
        with pytest.raises(Gone):
            await serving.ask(*arguments)
    assert await serving.ask("-n", "team-a", "status", "chat") == 0


async def test_status_json_is_json(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert await serving.ask("status", "chat", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["replicas"]["wanted"] == 2


async def test_status_tells_what_may_not_be_read(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    told = 'pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "team-a"'
    serving.answers[f"{CORE}/pods"] = 403, {"message": told}
    assert await serving.ask("status", "chat") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"not shown: {told}" in shown
    assert "There are no pods" not in shown


async def test_status_not_ready_is_a_no(serving: Api) -> None:
    edited = SERVING.service | {"metadata": SERVING.service["metadata"] | {"generation": 3}}
    serving.answers[f"{OURS}/namespaces/team-a/inferenceservices/chat"] = 200, edited
    assert await serving.ask("status", "chat") == 1


async def test_status_missing_object_names_those_that_are_there(api: Api) -> None:
    api.has(f"{OURS}/namespaces/team-a/inferenceservices", SERVING.service)
    with pytest.raises(Gone, match="no InferenceService chta in namespace team-a: there are chat"):
        await api.ask("status", "chta")
    api.has(f"{OURS}/namespaces/team-b/inferenceservices")
    with pytest.raises(Gone, match="there is none; -n names another namespace"):
        await api.ask("status", "chat", "-n", "team-b")
    api.answers.clear()
    with pytest.raises(Gone, match="its CRD is not installed"):
        await api.ask("status", "chat")


async def test_status_without_rights_or_cluster_is_no_answer(api: Api, tmp_path: Path) -> None:
    api.answers[f"{OURS}/namespaces/team-a/inferenceservices/chat"] = 403, {"message": "may not"}
    with pytest.raises(Rejected):
        await api.ask("status", "chat")
    api.kubeconfig = kubeconfig(tmp_path / "nobody")
    with pytest.raises(Unavailable):
        await api.ask("status", "chat")


@pytest.mark.parametrize("page", ["<html>log in first</html>", "", "[]", "null", '{"message": "welcome"}'])
async def test_any_command_at_what_is_no_api_server_is_no_answer(api: Api, page: str) -> None:
    api.answers[f"{OURS}/namespaces/team-a/inferenceservices/chat"] = 200, page
    for command in ("status", "why", "logs", "top"):
        with pytest.raises(Unavailable, match="not the answer of an API server"):
            await api.ask(command, "chat")


async def test_plan_file_that_is_not_there_is_no_verdict(api: Api, tmp_path: Path) -> None:
    there = tmp_path / "chat.yaml"
    there.touch()
    for file in ("/none.yaml", f"{there},/none.yaml"):
        with pytest.raises(SettingsError, match=r"-f /none\.yaml: there is no such file"):
            await api.ask("plan", "-f", file)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (None, "no kubectl on the PATH"),
        ("#!/bin/sh\necho a wrapper says hello", "no JSON of an object: a wrapper says hello"),
        ("#!/bin/sh", "no JSON of an object: nothing"),
        ("#!/bin/sh\necho '{}'", "there is no InferenceService in it"),
        ('#!/bin/sh\necho \'{"kind": "List", "items": []}\'', "there is no InferenceService in it"),
    ],
)
async def test_plan_kubectl_that_cannot_be_used_is_told(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, told: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if program is not None:
        (tmp_path / "kubectl").write_text(program)
        (tmp_path / "kubectl").chmod(0o755)
    with pytest.raises(SettingsError, match=told):
        await api.ask("plan", "-f", "-")


async def test_status_with_an_exec_credential_plugin(serving: Api) -> None:
    version = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "fresh"}}
    plugin = {"apiVersion": version, "command": "echo", "args": [json.dumps(credential)], "interactiveMode": "Never"}
    change_user(Path(serving.kubeconfig), {"exec": plugin})
    assert await serving.ask("status", "chat") == 0
    assert serving.credentials == {"Bearer fresh"}


async def test_why_reads_the_record(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    serving.answers[f"{CORE}/pods"] = 403, {"message": "may not"}  # nor is it needed
    assert await serving.ask("why", "chat") == 0
    assert "nothing was decided since it was made" in capsys.readouterr().out


@pytest.fixture
def operators(serving: Api) -> Api:
    """Two: the first stands by."""
    serving.has("/api/v1/namespaces/octavo-system/pods", *({"metadata": {"name": name}} for name in ("one", "two")))
    serving.answers[recording_of("one")] = 404, "this operator does not scale team-a/chat: another operator leads\n"
    serving.answers[recording_of("two")] = 200, '{"version":1}\n{}\n'
    return serving


def recording_of(pod: str) -> str:
    return f"/api/v1/namespaces/octavo-system/pods/{pod}:8080/proxy/autoscaling/team-a/chat"


async def test_why_inputs_are_those_of_the_operator_that_leads(
    operators: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await operators.ask("why", "chat", "--inputs") == 0
    assert capsys.readouterr().out == '{"version":1}\n{}\n'
    assert (
        "GET /api/v1/namespaces/octavo-system/pods?limit=250&labelSelector=app.kubernetes.io/name%3Doctavo-operator"
        in {asked.replace("%2F", "/") for asked in operators.asked}
    )


async def test_why_inputs_that_nobody_has(operators: Api) -> None:
    operators.answers[recording_of("two")] = operators.answers[recording_of("one")]
    with pytest.raises(Gone, match="this operator does not scale team-a/chat: another operator leads"):
        await operators.ask("why", "chat", "--inputs")
    operators.answers[recording_of("one")] = 503, {"message": "no route to host"}
    with pytest.raises(Unavailable, match="no route to host"):  # it may be the one that leads
        await operators.ask("why", "chat", "--inputs")


async def test_why_inputs_without_an_operator_or_a_right(operators: Api) -> None:
    operators.has("/api/v1/namespaces/elsewhere/pods")
    with pytest.raises(Gone, match="no operator runs in namespace elsewhere: name its namespace with --operator-names"):
        await operators.ask("why", "chat", "--inputs", "--operator-namespace", "elsewhere")
    operators.answers[recording_of("one")] = 403, {"message": "may not get pods/proxy"}
    with pytest.raises(Rejected, match="may not get pods/proxy"):
        await operators.ask("why", "chat", "--inputs")


async def test_why_inputs_have_one_form(operators: Api, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingsError, match="leave -o json out"):
        await operators.ask("why", "chat", "--inputs", "-o", "json")
    with pytest.raises(SettingsError, match="--operator-namespace goes with --inputs"):
        await operators.ask("why", "chat", "--operator-namespace", "elsewhere")
    with pytest.raises(SystemExit):
        await operators.ask("why", "chat", "--inputs", "--last", "3")
    assert "not allowed with argument" in capsys.readouterr().err


async def test_logs_are_merged_by_time_with_the_pods_short_names(
    serving: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (pod["metadata"]["name"] for pod in SERVING.pods)
    serving.answers[f"{CORE}/pods/{first}/log"] = 200, "2026-12-01T10:00:00.5Z loads\n2026-12-01T10:00:03Z ready\n"
    serving.answers[f"{CORE}/pods/{second}/log"] = 200, "2026-12-01T10:00:00.25Z starts\n2026-12-01T10:00:02Z é\n"
    assert await serving.ask("logs", "chat", "--tail", "5") == 0
    assert capsys.readouterr().out.splitlines() == [
        "5c8d7-9kzl2 | starts",
        "5c8d7-4wq8n | loads",
        "5c8d7-9kzl2 | é",
        "5c8d7-4wq8n | ready",
    ]
    assert f"GET {CORE}/pods/{first}/log?container=server&timestamps=true&tailLines=5" in serving.asked


async def test_logs_previous_that_is_not_there_is_told(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (pod["metadata"]["name"] for pod in SERVING.pods)
    told = f'previous terminated container "server" in pod "{first}" not found'
    serving.answers[f"{CORE}/pods/{first}/log"] = 400, {"message": told}
    serving.answers[f"{CORE}/pods/{second}/log"] = 200, "2026-12-01T10:00:00Z died\n"
    assert await serving.ask("logs", "chat", "-p") == 0
    captured = capsys.readouterr()
    assert captured.out == "5c8d7-9kzl2 | died\n"
    assert captured.err == f"not shown: 5c8d7-4wq8n: {told}\n"


async def test_logs_without_the_right_are_no_answer(serving: Api) -> None:
    for pod in SERVING.pods:
        serving.answers[f"{CORE}/pods/{pod['metadata']['name']}/log"] = 403, {"message": "cannot get pods/log"}
    with pytest.raises(Rejected, match="pods/log"):
        await serving.ask("logs", "chat")
    with pytest.raises(Rejected, match="pods/log"):
        await serving.ask("logs", "chat", "-f")


async def test_logs_without_pods_are_a_no(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    serving.has(f"{CORE}/pods")
    assert await serving.ask("logs", "chat") == 1
    assert "chat has no pod that has started" in capsys.readouterr().err


def metrics(tokens: int, fast: int, slow: int) -> str:
    first = "vllm:time_to_first_token_seconds"
    lines = [
        f"# TYPE {first} histogram",
        *(f'{first}_bucket{{le="{le}"}} {n}' for le, n in (("0.1", fast), ("0.5", fast + slow), ("+Inf", fast + slow))),
        f"{first}_count {fast + slow}",
        f"{first}_sum 1",
        "# TYPE vllm:generation_tokens counter",
        f'vllm:generation_tokens_total{{model_name="m"}} {tokens}',
        "# TYPE vllm:kv_cache_usage_perc gauge",
        "vllm:kv_cache_usage_perc 0.25",
        "# TYPE vllm:num_requests_running gauge",
        "vllm:num_requests_running 3",
    ]
    return "\n".join(lines) + "\n"


async def test_top_once_is_the_difference_of_two_looks(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (pod["metadata"]["name"] for pod in SERVING.pods)
    looks = [(200, metrics(1000, 5, 0)), (200, metrics(1200, 10, 5))]
    serving.answers[f"{CORE}/pods/{first}:8000/proxy/metrics"] = looks
    told = 'pods "b" is forbidden: User "ann" cannot get resource "pods/proxy"'
    serving.answers[f"{CORE}/pods/{second}:8000/proxy/metrics"] = 403, {"message": told}
    assert await serving.ask("top", "chat", "-o", "json", "--interval", "1") == 0
    shown = json.loads(capsys.readouterr().out)
    one, other = shown["pods"]
    assert (one["name"], one["cacheUsage"], one["running"], one["waiting"]) == (first, 0.25, 3, None)
    assert 150 < one["tokensPerSecond"] < 200
    assert one["ttftP50"] == 0.1
    assert other["state"] == "ready"
    assert other["tokensPerSecond"] is None
    assert shown["missing"] == [told]


async def test_top_of_pods_that_do_not_answer_is_a_no(serving: Api, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (pod["metadata"]["name"] for pod in SERVING.pods)
    serving.answers[f"{CORE}/pods/{first}:8000/proxy/metrics"] = 400, {"message": "address not allowed"}
    serving.answers[f"{CORE}/pods/{second}:8000/proxy/metrics"] = 503, {"message": "connection refused"}
    assert await serving.ask("top", "--all", "--interval", "1") == 1
    assert "0 of 2 answer" in capsys.readouterr().out


def octavo(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from octavo_operator.plugin.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"HOME": str(home)})


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--help"], 0, "kubectl octavo status chat"),
        (["status", "--help"], 0, "exit code:"),
        ([], 2, "required: COMMAND"),
        (["status"], 2, "required: NAME"),
        (["stats", "chat"], 2, "invalid choice: 'stats'"),
        (["logs", "chat", "-f", "-p"], 2, "not allowed with argument"),
        (["top"], 2, "one of the arguments NAME --all is required"),
        (["status", ""], 2, "'' is no name"),
        (["status", "isvc/chat"], 2, "'isvc/chat' is no name"),
        (["top", "../pods"], 2, "'../pods' is no name"),
        (["logs", "chat", "-n", "Team"], 2, "'Team' is no name"),
        (["why", "chat", "--inputs", "--operator-namespace", "a/b"], 2, "'a/b' is no name"),
        (["status", "chat", "--kubeconfig", "x" * 300], 2, "cannot be read: [Errno 36]"),
        (["why", "chat", "--last", "0"], 2, "'0' is not a whole number from 1"),
        (["status", "chat"], 2, "no kubeconfig: there is no file"),
        (["status", "chat", "--kubeconfig", "/none"], 2, "there is no file /none"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_main_exit_code_and_words(arguments: Sequence[str], code: int, told: str, tmp_path: Path) -> None:
    done = octavo(*arguments, home=tmp_path)
    assert done.returncode == code
    assert told in done.stdout + done.stderr


def test_main_no_way_to_the_cluster_is_told_with_a_hint(tmp_path: Path) -> None:
    done = octavo("status", "chat", "--kubeconfig", kubeconfig(tmp_path / "config"), home=tmp_path)
    assert done.returncode == 3
    assert "hint: is it the right --context" in done.stderr
    assert "Traceback" not in done.stderr


def test_main_imports_little() -> None:
    """A plugin is started for each question: --help needs no client, and no command needs kopf."""
    script = """
import sys
from octavo_operator.plugin import cli
early = {"kubernetes", "aiohttp", "pydantic", "yaml"} & sys.modules.keys()
import octavo_operator.plugin.status, octavo_operator.plugin.why, octavo_operator.cluster.user
print(early, "kopf" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set() False\n"


def test_find_target_of_several_files_the_first_wins(tmp_path: Path) -> None:
    first = Path(kubeconfig(tmp_path / "first", namespace="one"))
    second = Path(kubeconfig(tmp_path / "second", namespace="two"))
    other = yaml.safe_load(second.read_text())
    other["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "u"}})
    second.write_text(yaml.safe_dump(other | {"current-context": "y"}))
    both = {"KUBECONFIG": f"{first}::{tmp_path / 'none'}:{second}"}
    found = f"{first}:{second}"
    assert find_target(None, None, None, both) == Target(found, "x", "one")
    assert find_target(None, "y", None, both) == Target(found, "y", "default")
    assert find_target(None, "y", "three", both) == Target(found, "y", "three")
    assert find_target(str(second), None, None, both) == Target(str(second), "y", "default")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("current-context: z", "no context 'z'; it has none"),
        ("contexts: []", "has no current context"),
        ("a: [", "cannot be read"),
        ("[]", "is no kubeconfig"),
        ("contexts: [1]", "is no kubeconfig: 1 is no context"),
        ("contexts: [{name: x, context: c}]", "is no context"),
        ("", "has no current context"),
    ],
)
def test_find_target_file_that_cannot_be_used(content: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(SettingsError, match=told):
        find_target(str(path), None, None, {})


def test_find_target_in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_target(None, None, None, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) == Target(None, None, "default")
