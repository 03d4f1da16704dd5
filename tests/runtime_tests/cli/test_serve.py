"""`octavo serve` as a process: signals, exit codes, termination messages, help."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from octavo_runtime.server.serve import _everywhere
from octavo_runtime.testing import Script, ids, write_model

PROGRAM = (sys.executable, "-m", "octavo_runtime.testing")
SLOW = Script(reply=ids("word "), step_seconds=0.01)


@dataclass
class Program:
    """A running server process."""

    process: subprocess.Popen[str]
    termination_log: Path
    lines: list[str] = field(default_factory=list)
    port: int = 0

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Waits until a line of its log matches."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            time.sleep(0.01)
        raise AssertionError(f"no line matches {pattern!r} in {self.lines}")

    def post(self, address: str = "127.0.0.1", **body: Any) -> Any:
        request = urllib.request.Request(
            f"http://{address}:{self.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        return urllib.request.urlopen(request, timeout=30)  # noqa: S310 - our own loopback address

    def ends_with(self, code: int) -> None:
        assert self.process.wait(20) == code, self.lines

    def termination(self) -> dict[str, Any]:
        message = json.loads(self.termination_log.read_text())
        assert set(message) == {"code", "message", "hint", "needed", "available"}
        return dict(message)


@contextlib.contextmanager
def running(folder: Path, script: Script, *flags: str, ready: bool = True) -> Iterator[Program]:
    model = write_model(folder / "tiny", script)
    log = folder / "termination-log"
    command = [
        *PROGRAM,
        "serve",
        str(model),
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--termination-log",
        str(log),
        *flags,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        program = Program(process, log)

        def collect() -> None:
            for line in process.stderr or ():
                program.lines.append(line)

        reader = threading.Thread(target=collect)
        reader.start()
        try:
            program.port = int(program.wait_for(r"listening on http://[\d.]+:(\d+)")[1])
            if ready:
                program.wait_for('"ready: ')
            yield program
        finally:
            process.kill()
            process.wait()
            reader.join()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def engine_pid(program: Program) -> int:
    children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def test_serve_drains_on_sigterm(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as program:
        with program.post(prompt="hi", max_tokens=60, stream=True) as stream:
            stream.readline()
            program.process.send_signal(signal.SIGTERM)
            program.wait_for("draining: waiting for 1 requests")
            with pytest.raises(urllib.error.HTTPError) as refused:
                program.post(prompt="hi")
            assert refused.value.code == 503
            assert refused.value.headers["Connection"] == "close"
            assert int(refused.value.headers["Retry-After"]) > 0
            refused.value.close()
            rest = stream.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert rest.count(b'"finish_reason":null') == 59
        program.ends_with(0)
        assert not program.termination_log.exists()


def test_serve_second_signal_ends_at_once(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as program, program.post(prompt="hi", max_tokens=500, stream=True) as stream:
        stream.readline()
        program.process.send_signal(signal.SIGINT)
        program.wait_for("draining")
        program.process.send_signal(signal.SIGINT)
        assert b"the server is shutting down" in stream.read()
        program.ends_with(0)


def test_serve_sigterm_while_loading(tmp_path: Path) -> None:
    with running(tmp_path, Script(reply=ids("x"), load_seconds=30), ready=False) as program:
        program.process.send_signal(signal.SIGTERM)
        program.ends_with(0)


def test_serve_sigterm_while_it_starts_is_heard(tmp_path: Path) -> None:
    # As process 1 of a container it would otherwise sleep through the signal, and wait for SIGKILL.
    command = [sys.executable, "-m", "octavo_runtime.cli", "serve", str(write_model(tmp_path)), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        status = Path(f"/proc/{process.pid}/status")
        caught, deadline = 0, time.monotonic() + 20
        while not caught & 1 << (signal.SIGTERM - 1) and time.monotonic() < deadline:
            caught = int(re.findall(r"SigCgt:\s*(\w+)", status.read_text())[0], 16)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_serve_engine_killed(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as program, program.post(prompt="hi", max_tokens=500, stream=True) as stream:
        stream.readline()
        os.kill(engine_pid(program), signal.SIGKILL)
        rest = stream.read()
        assert b'{"error":{"message":"the engine process was killed' in rest
        program.ends_with(17)
        message = program.termination()
        assert message["code"] == "EngineDied"
        assert "memory" in message["hint"]
        program.wait_for("octavo: EngineDied: the engine process was killed")


def test_serve_server_killed_takes_the_engine_along(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as program:
        pid = engine_pid(program)
        program.process.kill()
        deadline = time.monotonic() + 10
        while alive(pid):
            assert time.monotonic() < deadline, "the engine outlives its server"
            time.sleep(0.01)


def test_serve_server_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    with running(tmp_path, Script(reply=ids("x"), hang_on=7)) as program:
        pid = engine_pid(program)

        def post() -> None:
            with contextlib.suppress(OSError):
                program.post(prompt=[7])

        thread = threading.Thread(target=post)
        thread.start()
        program.process.kill()
        deadline = time.monotonic() + 10
        while alive(pid):
            assert time.monotonic() < deadline, "the engine outlives its server"
            time.sleep(0.01)
        thread.join()


@pytest.mark.parametrize(("code", "exit_code"), [("BadWeights", 11), ("NotEnoughMemoryForKV", 14), ("BadFlags", 2)])
def test_serve_loading_fails(tmp_path: Path, code: str, exit_code: int) -> None:
    with running(tmp_path, Script(reply=ids("x"), load_error=code), ready=False) as program:
        program.ends_with(exit_code)
        assert program.termination()["code"] == code
        program.wait_for(f"octavo: {code}: scripted: loading failed")
        program.wait_for("Try another script")


def test_serve_port_taken(tmp_path: Path) -> None:
    with running(tmp_path, SLOW) as first:
        log = tmp_path / "second"
        ended = octavo("serve", str(tmp_path / "tiny"), "--port", str(first.port), "--termination-log", str(log))
        assert ended.returncode == 18
        assert json.loads(log.read_text())["code"] == "CannotListen"
        assert f"port {first.port}" in ended.stderr
        assert "give another --port" in ended.stderr


def test_serve_without_a_host_listens_on_all_addresses(tmp_path: Path) -> None:
    """A pod of an IPv6 cluster has no other."""
    with running(tmp_path, SLOW, "--host", "") as program:
        for address in ("127.0.0.1", *(["[::1]"] if has_ipv6() else [])):
            with program.post(address, prompt="hi", max_tokens=1) as answer:
                assert answer.status == 200


@pytest.mark.parametrize("ipv6", [False, True], ids=["none", "switched off"])
def test_everywhere_without_ipv6_listens_all_the_same(monkeypatch: pytest.MonkeyPatch, ipv6: bool) -> None:
    create = socket.create_server

    def fails(address: Any, *, family: socket.AddressFamily = socket.AF_INET, **more: Any) -> socket.socket:
        if family is socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
        return create(address, family=family, **more)

    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: ipv6)
    monkeypatch.setattr(socket, "create_server", fails)
    with _everywhere(0) as listening:
        assert listening.family is socket.AF_INET


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_serve_host_that_none_can_have(tmp_path: Path) -> None:
    ended = octavo("serve", str(write_model(tmp_path)), "--port", "0", "--host", "a..b")
    assert ended.returncode == 18
    assert "cannot listen on a..b port 0" in ended.stderr
    assert "Traceback" not in ended.stderr


def octavo(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *argv], capture_output=True, text=True, timeout=30, check=False)
