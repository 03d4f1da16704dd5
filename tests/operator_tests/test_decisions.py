import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.api.names import DECISIONS_ANNOTATION, Manifest
from octavo_operator.api.service import InferenceService
from octavo_operator.core.decisions import Decision, Subject, read_record, record
from octavo_operator.testing import inference_service
from tests.operator_tests.conftest import Golden

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = InferenceService.parse(
    inference_service() | {"metadata": {"name": "chat", "namespace": "default", "uid": "u-1", "generation": 1}}
)
STEP = Decision(Subject.ROLLOUT, "maxSurge 0, maxUnavailable 1", "a new pod has found no node", {"wanted": 1})


def write(present: Manifest | None, *decisions: Decision, at: float = 0) -> Manifest | None:
    moment = NOW + timedelta(seconds=at)
    return record(SERVICE, [present] if present else [], [(moment, decision) for decision in decisions])


def edited(text: str) -> Manifest:
    made = write(None, STEP)
    assert made is not None
    made["metadata"]["annotations"][DECISIONS_ANNOTATION] = text
    return made


def test_record_is_one_controller_revision(golden: Golden) -> None:
    golden("record", [write(None, STEP, Decision(Subject.REPAIR, "Service chat was created again", "it was deleted"))])


def test_record_nothing_new_writes_nothing() -> None:
    made = write(None, STEP)
    assert write(None) is None
    assert write(made) is None
    assert write(made, STEP, at=599) is None
    again = write(made, STEP, at=600)
    assert [one["number"] for one in read_record([again] if again else [])] == [1, 2]


def test_record_same_decision_for_another_reason_is_news() -> None:
    other = Decision(STEP.subject, STEP.decision, "no old pod has been ready", STEP.inputs)
    made = write(write(None, STEP), other)
    assert [one["because"] for one in read_record([made] if made else [])] == [STEP.because, other.because]


def test_record_has_one_name_and_unchanging_data() -> None:
    first = write(None, STEP)
    second = write(first, STEP, at=1000)
    assert first is not None
    assert second is not None
    assert (first["metadata"]["name"], first["data"]) == (second["metadata"]["name"], second["data"])
    assert (first["revision"], second["revision"]) == (1, 2)


def test_record_of_a_predecessor_is_not_continued() -> None:
    before = write(None, STEP)
    assert before is not None
    before["metadata"]["ownerReferences"][0]["uid"] = "u-0"
    made = write(before, STEP)
    assert made is not None
    assert [one["number"] for one in read_record([made])] == [1]


@given(st.lists(st.tuples(st.sampled_from(Subject), st.text(max_size=2000), st.text(max_size=2000)), max_size=80))
def test_record_is_bounded_and_keeps_the_latest(made: list[tuple[Subject, str, str]]) -> None:
    present = None
    for number, (subject, what, why) in enumerate(made):
        present = write(present, Decision(subject, what, why, {"fields": [what[:80]]}), at=1000 * number)
    entries = read_record([present] if present else [])
    numbers = [one["number"] for one in entries]
    assert numbers == list(range(len(made) - len(entries) + 1, len(made) + 1))
    assert len(entries) <= 32
    if present is not None:
        assert len(present["metadata"]["annotations"][DECISIONS_ANNOTATION]) <= 16 * 1024
        assert entries[-1]["decision"] == made[-1][1][:500]


ENTRY = {"number": 1, "time": "2026-01-01T00:00:00Z", "subject": "Rollout", "decision": "", "because": "", "inputs": {}}
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(list(ENTRY.values())[:3]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*ENTRY]), inner),
)


@given(st.text() | st.lists(JSON | JSON.map(lambda value: ENTRY | {"time": value})).map(json.dumps))
def test_record_that_someone_has_edited_is_begun_anew_or_goes_on(text: str) -> None:
    made = write(edited(text), STEP, at=1000)
    assert made is not None
    assert read_record([made])[-1]["decision"] == STEP.decision
