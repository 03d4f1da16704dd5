import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("port", ["1"])
def test_main_port_that_is_not_allowed(tmp_path: Path, port: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG % 1)
    done = operator("--runtime-image", "image", "--kubeconfig", str(path), "--host", "192.0.2.1", "--port", port)
    assert done.returncode == 2
    assert "cannot listen on 192.0.2.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_import_touches_neither_typed_models_nor_the_runtime() -> None:
    program = (
        "import octavo_operator.__main__, sys; "
        "print([m for m in sys.modules if m.startswith(('torch', 'octavo_runtime', 'kubernetes.aio.client.api.', 'kubernetes.aio.client.models.'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
