"""`octavo-operator replay` as it is typed, on recordings of a surge that one pod could not take."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from octavo_operator.autoscale.core.decide import decide, start
from octavo_operator.autoscale.core.recording import VERSION, Heading, Round, line_of, read_recording
from octavo_operator.autoscale.core.replay import Replayed
from octavo_operator.autoscale.core.ring import Ring
from octavo_operator.autoscale.core.values import Decision, Pod, Sample, Settings, Verdict
from octavo_operator.replay import main, screen
from tests.operator_tests.conftest import GoldenScreen

SETTINGS = Settings(min_replicas=1, max_replicas=3, slots=16, stabilization=60.0)
BEGAN = datetime(2026, 12, 1, 12, tzinfo=UTC)


def surge() -> list[bytes]:
    """Five minutes: a pod is half busy, is flooded for two minutes, there are three after one, and it is over."""
    ring, state, desired, now = Ring(), start(SETTINGS, -600.0), 1, 0.0
    finished = dict.fromkeys(range(3), 0.0)
    queue = 0.0
    for number in range(60):
        now = 5.0 * number
        comes = 1.0 if 60 <= now < 180 else 0.1  # requests a second
        serving = 3 if now >= 120 else 1
        queue = max(0.0, queue + 5 * (comes - 0.4 * serving))
        running = 16.0 if queue else 16 * comes / (0.4 * serving)
        pods = []
        for pod in range(serving):
            finished[pod] += 2.0 if queue else 5 * comes / serving
            sample = Sample(now, running, queue / serving, running / 20, finished[pod], finished[pod] * 100, 0.0)
            pods.append(Pod(f"uid-{pod}", 40.0 * pod, 60.0 * pod, sample=sample))
        before = state
        decision, state = decide(SETTINGS, before, pods, desired, now)
        made = Round(BEGAN + timedelta(seconds=now), now, True, desired, SETTINGS, tuple(pods), decision, None)
        ring.add(made, before, 2**20)
        desired = decision.replicas
    return [line_of(Heading(VERSION, "team-a", "chat", "0.1.0")), *b"".join(ring.text()).splitlines(keepends=True)]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b"".join(surge()))
    return path


def decided(replicas: int, demand: float) -> Decision:
    return Decision(replicas, Verdict.DEMAND, demand, demand, 0.0, 0.0, 1, 0, replicas, replicas, demand, 0.0)


def by_hand() -> list[Replayed]:
    """Decisions that hang on no rule: recorded are 1, 3, 2 replicas, replayed 1, 2, 4, 3, each after so many rounds."""
    _, rounds = read_recording(line.decode() for line in surge())
    recorded = [*[decided(1, 0.25)] * 13, *[decided(3, 2.0)] * 44, *[decided(2, 1.5)] * 3]
    replayed = [*[decided(1, 0.25)] * 12, decided(2, 1.5), *[decided(4, 3.5)] * 44, *[decided(3, 2.5)] * 3]
    return [
        Replayed(replace(one, decision=before), before.replicas, after)
        for one, before, after in zip(rounds, recorded, replayed, strict=True)
    ]


def test_screen_shows_what_was_decided(golden_screen: GoldenScreen) -> None:
    same = [replace(one, decision=one.recorded.decision) for one in by_hand()]
    golden_screen("replay", screen(same, {}))


def test_screen_set_shows_both_side_by_side(golden_screen: GoldenScreen) -> None:
    golden_screen("replay-set", screen(by_hand(), {"max_replicas": 20, "target_cache": 0.4}))


def test_screen_many_replicas_fit(golden_screen: GoldenScreen) -> None:
    many = [replace(one, decision=decided(number * number, 1.0)) for number, one in enumerate(by_hand(), 1)]
    golden_screen("replay-many", screen(many, {"max_replicas": 10000}).partition("\n\nTIME")[0])


def test_main_same_settings_give_the_same_decisions(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "chat in namespace team-a: 60 decisions, 2026-12-01 12:00:00 to 12:04:55 UTC"
    assert told[1] == "each came out as it was recorded, bit for bit"


def test_main_set_decides_otherwise(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording), "--set", "maxReplicas=20", "--set", "targetCacheUsage=40"]) == 0
    told = capsys.readouterr().out
    assert "maxReplicas: 3 recorded, 20 replayed" in told
    assert "targetCacheUsage: 80 recorded, 40 replayed" in told
    assert "x" in told.partition("\n\nTIME")[0].partition("replicas\n")[2]


def test_main_all_has_a_line_for_each_decision(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording), "--all"]) == 0
    *_, table = capsys.readouterr().out.split("\n\n")
    assert len(table.splitlines()) == 1 + 60


def test_main_reads_the_input(recording: Path) -> None:
    command = [sys.executable, "-m", "octavo_operator", "replay", "-"]
    with recording.open() as given:
        done = subprocess.run(command, stdin=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "each came out as it was recorded, bit for bit" in done.stdout


def test_main_whoever_reads_has_read_enough(recording: Path) -> None:
    command = [sys.executable, "-m", "octavo_operator", "replay", str(recording), "--all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 0


def test_main_another_decision_is_a_no_with_the_first_difference(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = recording.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"replicas":3' in line)
    lines[at] = lines[at].replace('"replicas":3', '"replicas":2')
    recording.write_text("".join(lines))
    assert main([str(recording)]) == 1
    told = capsys.readouterr().out
    assert f"NOT as recorded: decision {at}, 12:02:" in told
    assert "replicas was 2, and is 3 now" in told
    assert "decided by octavo-operator 0.1.0" in told
    assert main([str(recording), "--set", "maxReplicas=5"]) == 0
    assert f"NOT as recorded: decision {at}, 12:02:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["targetQueueLength"], "--set targetQueueLength: write NAME=VALUE, such as targetQueueLength=2"),
        (["target=2"], "--set target: it is none of minReplicas, maxReplicas, targetCacheUsage, targetQueueLength, "),
        (["mode=Observe"], "--set mode: a replay writes nothing"),
        (["targetCacheUsage=0"], "--set targetCacheUsage=0: '0' is not a whole number from 1 to 100"),
        (["targetCacheUsage=.8"], "'.8' is not a whole number from 1 to 100"),
        (["maxReplicas=٣"], "'٣' is not a whole number from 1 to 10000"),
        (["maxReplicas=4", "maxReplicas=5"], "--set maxReplicas: it is set twice"),
        (["minReplicas=4"], "minReplicas 4 is above maxReplicas 3; set both"),
        (["minReplicas=4", "maxReplicas=2"], "minReplicas 4 is above maxReplicas 2\n"),
    ],
)
def test_main_setting_that_cannot_be_used_is_told(
    recording: Path, given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(recording), *(f"--set={one}" for one in given)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"", "{}: it is empty"),
        (b"\x1f\x8b\x08", "{}: it is no text: is it packed?"),
        (b"".join(surge())[:-7], "{}: it breaks off in line 61"),
    ],
)
def test_main_file_that_cannot_be_used_is_told(
    tmp_path: Path, content: bytes | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path)]) == 2
    assert told.format(path) in capsys.readouterr().err


def test_main_help_teaches() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octavo_operator", "replay", "--help"], capture_output=True, text=True, check=True
    )
    assert "kubectl octavo why NAME --inputs > FILE" in done.stdout
    assert "exit code: 0 when all came out as recorded" in done.stdout
