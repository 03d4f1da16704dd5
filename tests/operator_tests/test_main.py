import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo_operator import __main__ as program
from octavo_operator.errors import Gone, NotLeading, OperatorError
from octavo_operator.handlers import run as run_module
from octavo_operator.settings import Settings

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def operator(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo_operator", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, env={"HOME": "/nonexistent"}
    )


def test_main_bad_settings_end_with_code_2_and_a_sentence() -> None:
    done = operator()
    assert done.returncode == 2
    assert done.stderr.startswith("octavo-operator: no image of the runtime: pass --runtime-image")


def test_main_without_a_cluster_ends_with_code_2_and_a_sentence() -> None:
    done = operator("--runtime-image", "image")
    assert done.returncode == 2
    assert "no way to the cluster" in done.stderr


def test_main_kubeconfig_that_does_not_exist() -> None:
    done = operator("--runtime-image", "image", "--kubeconfig", "/none")
    assert done.returncode == 2
    assert "--kubeconfig: there is no file /none" in done.stderr


@pytest.mark.parametrize("port", ["1"])
def test_main_port_that_is_not_allowed(tmp_path: Path, port: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG % 1)
    done = operator("--runtime-image", "image", "--kubeconfig", str(path), "--host", "192.0.2.1", "--port", port)
    assert done.returncode == 2
    assert "cannot listen on 192.0.2.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_main_sigterm_while_it_starts_ends_it_at_once(tmp_path: Path) -> None:
    """As process 1 of a container it would otherwise not hear the signal and wait for SIGKILL."""
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG % 1)
    command = [
        sys.executable,
        "-m",
        "octavo_operator",
        "--runtime-image",
        "image",
        "--kubeconfig",
        str(path),
        "--port",
        "1",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        status = Path(f"/proc/{process.pid}/status")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            caught = next(line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
            if int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1):
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_main_ctrl_c_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "_run", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


class IdleController:
    """Works until it is cancelled."""

    cancelled = False

    def on_event(self, *_: object) -> None:
        raise AssertionError

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


class IdleAutoscaler:
    """Follows nothing."""

    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("error", [None, RuntimeError("410")], ids=["returns", "raises"])
async def test_supervise_end_of_the_watches_is_the_end(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    async def watch(*_: object, **__: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(run_module, "watch", watch)
    controller, autoscaler, client = IdleController(), IdleAutoscaler(), SimpleNamespace(connection=None)
    with pytest.raises(OperatorError, match="kopf ended by itself"):
        await run_module._supervise(controller, autoscaler, None, client, Settings(runtime_image="x"))  # type: ignore[arg-type] # stand-ins
    assert controller.cancelled
    assert autoscaler.is_closed


class Candidate:
    """Leads until it is deposed, if ever; gives back what it must only after everything that writes has stopped."""

    def __init__(self, controller: IdleController, autoscaler: IdleAutoscaler, error: Exception | None) -> None:
        self.controller = controller
        self.autoscaler = autoscaler
        self.error = error
        self.is_released = False

    async def run(self) -> None:
        if self.error is None:
            await asyncio.Event().wait()
        else:
            raise self.error

    async def release(self) -> None:
        assert self.controller.cancelled
        assert self.autoscaler.is_closed
        self.is_released = True


async def test_supervise_lost_lease_ends_everything_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(run_module, "watch", watch)
    controller, autoscaler, client = IdleController(), IdleAutoscaler(), SimpleNamespace(connection=None)
    candidate = Candidate(controller, autoscaler, NotLeading("stops: Lease a/b is held by other now"))
    with pytest.raises(NotLeading, match="stops: Lease a/b is held by other now"):
        await run_module._supervise(controller, autoscaler, candidate, client, Settings(runtime_image="x"))  # type: ignore[arg-type] # stand-ins
    assert candidate.is_released


async def test_supervise_gives_the_lease_back_whatever_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*_: object, **__: object) -> None:
        raise RuntimeError("410")

    monkeypatch.setattr(run_module, "watch", watch)
    controller, autoscaler, client = IdleController(), IdleAutoscaler(), SimpleNamespace(connection=None)
    candidate = Candidate(controller, autoscaler, None)
    with pytest.raises(OperatorError, match="kopf ended by itself"):
        await run_module._supervise(controller, autoscaler, candidate, client, Settings(runtime_image="x"))  # type: ignore[arg-type] # stand-ins
    assert candidate.is_released


async def test_supervise_missing_crd_says_what_to_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    class Controller(IdleController):
        async def run(self) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.list_forever())

        async def list_forever(self) -> None:
            raise Gone("the server could not find the requested resource")

    monkeypatch.setattr(run_module, "watch", watch)
    client = SimpleNamespace(connection=None)
    with pytest.raises(OperatorError, match="kubectl apply --server-side -f crds/"):
        await run_module._supervise(Controller(), IdleAutoscaler(), None, client, Settings(runtime_image="x"))  # type: ignore[arg-type] # stand-ins


def test_import_touches_neither_typed_models_nor_the_runtime() -> None:
    program = (
        "import octavo_operator.__main__, octavo_operator.handlers.run, sys; "
        "print([m for m in sys.modules if m.startswith(('torch', 'octavo_runtime', 'kubernetes.aio.client.api.', 'kubernetes.aio.client.models.'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
