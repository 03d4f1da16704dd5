from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.api.names import TEMPLATE_LABEL, Manifest
from octavo_operator.core.rollout import PATIENCE_SECONDS, Replica, Stall, Step, next_step, replicas_of, surge_of


def test_next_step_misses_fewer_pods_when_room_comes() -> None:
    pods = [Replica(f"old{number}", is_new=False, is_ready=True, is_placed=True) for number in range(3)]
    step = next_step(4, pods, refused=False, current=(0, 3), stall=None, now=0)
    assert (step.max_surge, step.max_unavailable) == (0, 2)


def test_next_step_waits_for_a_pod_that_is_leaving() -> None:
    """The last rollout's pod still drains on the GPU that the next one's needs: no ready pod is stopped for that."""
    pods = (
        Replica("old", is_new=False, is_ready=True, is_placed=True),
        Replica("drains", is_new=False, is_placed=True, is_leaving=True),
        Replica("new", is_new=True),
    )
    stall = None
    for now in (0.0, 30.0, 120.0):
        step = next_step(1, pods, refused=False, current=(1, 0), stall=stall, now=now)
        assert (step.max_surge, step.max_unavailable) == (1, 0)
        stall = step.stall
    step = next_step(1, (pods[0], pods[2]), refused=False, current=(1, 0), stall=stall, now=130.0)
    assert (step.max_surge, step.look_again_after) == (1, PATIENCE_SECONDS)
    step = next_step(1, (pods[0], pods[2]), refused=False, current=(1, 0), stall=step.stall, now=150.0)
    assert (step.max_surge, step.max_unavailable) == (0, 1)


NAMES = "abcde"


@st.composite
def replicas(draw: st.DrawFn) -> tuple[Replica, ...]:
    """Any pods that can be observed: one that is ready has a node and is not unready."""
    found = []
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5)):
        is_leaving = draw(st.booleans())
        is_placed = is_leaving or draw(st.booleans())
        is_ready = is_placed and draw(st.booleans())
        unready = 0.0 if is_ready else float(draw(st.integers(0, 60)))
        found.append(
            Replica(
                uid=name,
                is_new=draw(st.booleans()),
                is_ready=is_ready,
                is_placed=is_placed,
                is_leaving=is_leaving,
                unready_seconds=unready,
            )
        )
    return tuple(found)


STALLS = st.none() | st.builds(Stall, st.sets(st.sampled_from(NAMES)).map(frozenset), st.integers(0, 100).map(float))
STRATEGIES = st.none() | st.tuples(st.integers(0, 2), st.integers(0, 4)).filter(any)
"""The API server keeps no Deployment whose surge and unavailable are both 0."""


@settings(max_examples=1000, deadline=None)
@given(
    wanted=st.integers(0, 4),
    pods=replicas(),
    refused=st.booleans(),
    current=STRATEGIES,
    stall=STALLS,
    right=st.booleans(),
)
def test_next_step_of_any_observed_state(
    wanted: int,
    pods: tuple[Replica, ...],
    refused: bool,
    current: tuple[int, int] | None,
    stall: Stall | None,
    right: bool,
) -> None:
    """Each invariant of the module's header that one answer can keep or break, whatever led to the state."""
    now = 100.0
    staying = [one for one in pods if not one.is_leaving]
    if right:
        stall = Stall(frozenset(one.uid for one in staying), stall.since if stall else now)
    step = next_step(wanted, pods, refused=refused, current=current, stall=stall, now=now)
    strategy = step.max_surge, step.max_unavailable

    # The API server takes it, and looking again at the same moment changes nothing.
    assert min(strategy) >= 0
    assert strategy != (0, 0)
    again = next_step(wanted, pods, refused=refused, current=strategy, stall=step.stall, now=now)
    assert (again.max_surge, again.max_unavailable) == strategy
    assert again.look_again_after == step.look_again_after

    old = [one for one in staying if not one.is_new]
    new = [one for one in staying if one.is_new]
    ready = sum(one.is_ready for one in staying)
    moves = len(staying) < len(pods) or any(one.is_placed and not one.is_ready for one in new)
    if not old and not moves and (ready or not new):
        assert step == Step()
    if any(one.is_ready for one in old) and wanted > 0:
        # A ready old pod is there to keep: one pod at most makes room.
        assert wanted - step.max_unavailable >= min(ready, wanted) - 1
    if step.max_surge == 0 and (current is None or current[0] != 0):
        # Room is made only when nobody leaves, no new pod starts, and someone has waited long enough.
        assert not moves
        assert refused or any(not one.is_placed for one in new)
        assert stall is not None
        assert stall.pods == {one.uid for one in staying}
        assert now - stall.since >= PATIENCE_SECONDS
    if old and all(one.unready_seconds >= PATIENCE_SECONDS for one in old):
        assert step.max_unavailable >= wanted, "a broken old revision is in nobody's way"


@settings(max_examples=500, deadline=None)
@given(wanted=st.integers(1, 4), pods=replicas(), refused=st.booleans(), current=STRATEGIES, part=st.floats(0, 0.99))
def test_next_step_time_alone_changes_it_when_it_said(
    wanted: int, pods: tuple[Replica, ...], refused: bool, current: tuple[int, int] | None, part: float
) -> None:
    def at(seconds: float, stall: Stall | None, strategy: tuple[int, int] | None) -> Step:
        aged = tuple(
            one if one.is_ready else replace(one, unready_seconds=one.unready_seconds + seconds) for one in pods
        )
        return next_step(wanted, aged, refused=refused, current=strategy, stall=stall, now=seconds)

    first = at(0, None, current)
    strategy = first.max_surge, first.max_unavailable
    wait = 600.0 if first.look_again_after is None else first.look_again_after
    assert wait > 0
    later = at(wait * part, first.stall, strategy)
    assert (later.max_surge, later.max_unavailable) == strategy


def pod(label: str | None, *, conditions: dict[str, str] | None = None, **fields: Any) -> Manifest:
    labels = {TEMPLATE_LABEL: label} if label else {}
    metadata = {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels} | fields.pop("metadata", {})
    told = [
        {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:30Z"}
        for kind, status in (conditions or {}).items()
    ]
    return {"metadata": metadata, "status": {"conditions": told, **fields}}


NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("manifest", "found"),
    [
        (pod("new"), Replica("u", is_new=True, unready_seconds=60)),
        (pod("old", conditions={"PodScheduled": "False"}), Replica("u", is_new=False, unready_seconds=60)),
        (
            pod("new", conditions={"PodScheduled": "True", "Ready": "False"}),
            Replica("u", is_new=True, is_placed=True, unready_seconds=30),
        ),
        (
            pod("new", conditions={"PodScheduled": "True", "Ready": "True"}),
            Replica("u", is_new=True, is_placed=True, is_ready=True),
        ),
        (
            pod("old", metadata={"deletionTimestamp": "2026-01-01T00:00:50Z"}),
            Replica("u", is_new=False, is_leaving=True, unready_seconds=60),
        ),
    ],
)
def test_replicas_of(manifest: Manifest, found: Replica) -> None:
    assert replicas_of([manifest], "new", NOW) == (found,)


@pytest.mark.parametrize(
    "manifest",
    [
        pod(None),
        pod("new", phase="Failed"),
        pod("old", metadata={"deletionTimestamp": "2026-01-01T00:00:30Z"}),
    ],
    ids=["stranger", "evicted", "on a lost node"],
)
def test_replicas_of_leaves_out(manifest: Manifest) -> None:
    assert replicas_of([manifest], "new", NOW + timedelta(seconds=1)) == ()


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, (0, 1)),
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}, None),
        ({"type": "Recreate"}, None),
    ],
)
def test_surge_of(strategy: Manifest, found: tuple[int, int] | None) -> None:
    assert surge_of({"spec": {"strategy": strategy}}) == found
