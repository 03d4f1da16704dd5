import json
from datetime import timedelta
from typing import Any

import pytest

from octavo_operator.plugin.facts import Facts
from octavo_operator.plugin.pods import state_of
from octavo_operator.plugin.screen import coloured
from octavo_operator.plugin.status import as_json, is_ready, screen
from tests.operator_tests.conftest import GoldenScreen
from tests.operator_tests.plugin_objects import BROKEN, NOW, ROLLING, SERVING, pod, ready_pod, service


@pytest.mark.parametrize(
    ("name", "facts", "verdict"),
    [("status-serving", SERVING, True), ("status-rolling", ROLLING, False), ("status-broken", BROKEN, False)],
)
def test_screen_answers(name: str, facts: Facts, verdict: bool, golden_screen: GoldenScreen) -> None:
    golden_screen(name, screen(facts, NOW))
    assert is_ready(facts) is verdict
    told = json.loads(json.dumps(as_json(facts, NOW)))
    assert told["ready"] is verdict
    assert [one["name"] for one in told["pods"]] == [one["metadata"]["name"] for one in facts.pods]


def test_screen_of_an_object_that_nobody_has_looked_at(golden_screen: GoldenScreen) -> None:
    fresh = service()
    del fresh["status"]
    golden_screen("status-unseen", screen(Facts(fresh), NOW))


def test_screen_colour_changes_nothing_but_colour() -> None:
    for facts in (SERVING, ROLLING, BROKEN):
        text = screen(facts, NOW, coloured)
        assert "\x1b[3" in text
        for code in ("0", "1", "2", "31", "32", "33"):
            text = text.replace(f"\x1b[{code}m", "")
        assert text == screen(facts, NOW)


def test_screen_lines_fit_a_terminal() -> None:
    """Only commands, which are to be copied, may be longer."""
    for facts in (SERVING, ROLLING, BROKEN):
        for line in screen(facts, NOW).splitlines():
            assert len(line) <= 100 or line.strip().startswith("`")


SINCE = "2026-12-01T11:59:00Z"


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "restartCount": 0, **state}


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (ready_pod("p", "a", SINCE), "ready"),
        (pod("p", "a", SINCE, metadata={"deletionTimestamp": "2026-12-01T12:01:00Z"}), "leaving, for 60s at most"),
        (pod("p", "a", SINCE, metadata={"deletionTimestamp": SINCE}), "should be gone: is its node lost?"),
        (pod("p", "a", SINCE, phase="Failed", reason="Evicted"), "Evicted"),
        (pod("p", "a", SINCE, conditions={"PodScheduled": "False"}), "waits for a node"),
        (pod("p", "a", SINCE, conditions={"PodReadyToStartContainers": "False"}), "waits for volumes and network"),
        (pod("p", "a", SINCE), "is being started"),
        (pod("p", "a", SINCE, initContainerStatuses=[container("plan", state={"running": {}})]), "plans"),
        (pod("p", "a", SINCE, initContainerStatuses=[container("fetch", state={"running": {}})]), "runs fetch"),
        (pod("p", "a", SINCE, containerStatuses=[container("server", state={"running": {}})]), "loads the model"),
        (
            pod("p", "a", SINCE, containerStatuses=[container("server", started=True, state={"running": {}})]),
            "answers no more",
        ),
        (
            pod(
                "p", "a", SINCE, containerStatuses=[container("server", state={"waiting": {"reason": "ErrImagePull"}})]
            ),
            "ImagePullBackOff",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_state_of_a_pod(one: dict[str, Any], state: str) -> None:
    assert state_of(one, NOW)[0] == state


def test_screen_of_any_age_is_written() -> None:
    for days in (0, 1, 400):
        assert screen(SERVING, NOW + timedelta(days=days))
