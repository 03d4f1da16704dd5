from datetime import UTC, datetime

from octavo_operator.api.names import Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.decisions import Decision, Subject, record
from octavo_operator.plugin.facts import Facts
from octavo_operator.plugin.why import as_json, screen
from tests.operator_tests.conftest import GoldenScreen
from tests.operator_tests.plugin_objects import NOW, service


def revisions() -> tuple[Manifest, ...]:
    """As the operator writes them."""
    made = [
        (
            "2026-12-01T11:47:20Z",
            Decision(
                Subject.TEMPLATE,
                "pods are to be of template 5b6c0a5c4b3c2f10",
                "the spec changed: runtime.maxNumSeqs: 64 to 8; resources.limits.nvidia.com/gpu: nothing to 1",
                {"before": "0123456789abcdef", "generation": 2},
            ),
        ),
        (
            "2026-12-01T11:47:41Z",
            Decision(
                Subject.ROLLOUT,
                "maxSurge 0, maxUnavailable 1",
                "a new pod has found no node for 20 s, while nothing else moved: a ready old pod makes room",
                {
                    "before": {"maxSurge": 1, "maxUnavailable": 0},
                    "wanted": 2,
                    "pods": {"new without a node": 1, "old ready": 2},
                },
            ),
        ),
        (
            "2026-12-01T11:59:00Z",
            Decision(
                Subject.REPAIR,
                "Service chat was put right: spec.type: NodePort to ClusterIP",
                "someone else had changed it",
                {"fields": ["spec.type"]},
            ),
        ),
    ]
    times = [(datetime.fromisoformat(time).astimezone(UTC), decision) for time, decision in made]
    written = record(InferenceService.parse(service()), [], times)
    assert written is not None
    return (written,)


def test_screen_tells_each_decision(golden_screen: GoldenScreen) -> None:
    golden_screen("why", screen(Facts(service(), revisions=revisions()), NOW, last=10))


def test_screen_last_shows_the_latest() -> None:
    text = screen(Facts(service(), revisions=revisions()), NOW, last=1)
    assert text.startswith("chat in namespace team-a: 3 decisions so far, the last 1 of 3 on record\n\n3. Repair")


def test_screen_nothing_decided_and_nothing_readable_are_told_apart(golden_screen: GoldenScreen) -> None:
    golden_screen("why-nothing", screen(Facts(service()), NOW, last=10))
    forbidden = 'controllerrevisions.apps is forbidden: User "ann" cannot list resource "controllerrevisions"'
    assert forbidden in screen(Facts(service(), missing=(forbidden,)), NOW, last=10).replace("\n", " ")


def test_as_json_is_the_record() -> None:
    told = as_json(Facts(service(), revisions=revisions()))
    assert [one["number"] for one in told["decisions"]] == [1, 2, 3]
