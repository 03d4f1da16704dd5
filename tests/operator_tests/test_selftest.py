"""The selftest holds for the operator as it is, and fails for one that is broken: each mutant breaks a promise."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator import children, reconcile
from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import DEPLOYMENT
from octavo_operator.core import contest
from octavo_operator.core import plan as plan_module
from octavo_operator.core import revision as revision_module
from octavo_operator.core import status as status_module
from octavo_operator.core.digest import digest
from octavo_operator.core.election import Election
from octavo_operator.core.plan import Applied
from octavo_operator.core.queue import WorkQueue
from octavo_operator.core.rollout import Step
from octavo_operator.core.store import Store
from octavo_operator.handlers.controller import Controller
from octavo_operator.handlers.lead import Fenced
from octavo_operator.reconcile import Reconciler
from octavo_operator.selftest import program
from octavo_operator.selftest.program import main, play
from octavo_operator.selftest.promises.catalogue import PROMISES
from octavo_operator.selftest.promises.model import Promise
from octavo_operator.selftest.world import World


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", PROMISES)
def test_play_every_promise_holds(name: str, seed: int) -> None:
    assert play(PROMISES[name], seed).broken == ()


Mutate = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[str, Mutate]] = {}


def mutant(promise: str) -> Callable[[Mutate], Mutate]:
    """Registers a way to break the operator, with the promise that tells."""

    def register(mutate: Mutate) -> Mutate:
        MUTANTS[mutate.__name__] = promise, mutate
        return mutate

    return register


@mutant("steady-state")
def writes_the_status_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "is_written", lambda *_: False)


@mutant("steady-state")
def forgets_what_it_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(children, "remember", lambda *_: Applied("", ""))


@mutant("takeover")
def recalls_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "recall", lambda _: {})


@mutant("drift")
def leaves_drift_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan_module, "remember", lambda sent, _: Applied(digest(sent), ""))
    patch.setattr(children, "remember", lambda sent, _: Applied(digest(sent), ""))


@mutant("foreign-object")
def adopts_whatever_bears_the_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan_module, "is_ours", lambda *_: True)
    patch.setattr(children, "is_ours", lambda *_: True)


@mutant("foreign-writer")
def answers_whoever_writes_against_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(contest, "REPAIRS_PER_MINUTE", 1000)


@mutant("foreign-writer")
def answers_whoever_writes_its_status(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "_said", lambda _: object())


@mutant("recreated")
def sends_no_uid_with_a_status(patch: pytest.MonkeyPatch) -> None:
    write = Reconciler._write_status

    async def without(self: Reconciler, *given: Any) -> Any:
        port = self._port

        class Port:
            async def apply_status(self, manifest: Any, *, manager: str) -> Any:
                manifest["metadata"].pop("uid")
                return await port.apply_status(manifest, manager=manager)

            record = port.record

        self._port = Port()  # type: ignore[assignment] # a stand-in for what it needs
        try:
            return await write(self, *given)
        finally:
            self._port = port

    patch.setattr(Reconciler, "_write_status", without)


@mutant("burst")
def lets_no_edit_overtake(patch: pytest.MonkeyPatch) -> None:
    add = WorkQueue.add

    def without_lanes(self: WorkQueue[Any], key: Any, *, urgent: bool = False) -> None:
        del urgent
        add(self, key)

    patch.setattr(WorkQueue, "add", without_lanes)


@mutant("refused")
def does_not_back_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WorkQueue, "retry", lambda self, key, now, **_: self.add_at(key, now + 10))


@mutant("missing-claim")
def waits_for_news_of_the_claim(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconciler, "_patience", lambda *_, **__: None)


@mutant("watch-gap")
def keeps_ghosts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "prune", lambda *_: set())


@mutant("lost-deletions")
def never_lists_again(patch: pytest.MonkeyPatch) -> None:
    start = Controller.__init__
    patch.setattr(
        Controller, "__init__", lambda self, *given, **named: start(self, *given, **(named | {"resync_seconds": 1e9}))
    )


@mutant("lagging-watch")
def believes_old_events(patch: pytest.MonkeyPatch) -> None:
    upsert = Store.upsert

    def forgetful(self: Store, kind: Any, manifest: Any) -> set[Any]:
        self._tombstones[kind].clear()
        key = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        known = self._objects[kind].get(key)
        if known is not None:
            self._objects[kind][key] = replace(known, version=0)
        return upsert(self, kind, manifest)

    patch.setattr(Store, "upsert", forgetful)


@mutant("edit-in-answer")
def misses_an_edit_that_an_answer_brings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "_wish", lambda _: ())


@mutant("conflicts")
def takes_a_conflict_for_the_end(patch: pytest.MonkeyPatch) -> None:
    look_again = Controller._look_again

    def unless_failed(self: Controller, key: Any, delay: float, outcome: str) -> None:
        if outcome != "failed":
            look_again(self, key, delay, outcome)

    patch.setattr(Controller, "_look_again", unless_failed)


@mutant("failing-pods")
def tells_reasons_of_its_own(patch: pytest.MonkeyPatch) -> None:
    status = status_module.desired_status

    def renamed(*given: Any, **named: Any) -> Any:
        told = status(*given, **named)
        for condition in told["conditions"]:
            condition["reason"] = condition["reason"].replace(Reason.BAD_WEIGHTS, "Oops")
        return told

    patch.setattr(reconcile, "desired_status", renamed)


@mutant("failing-pods")
def tells_nothing_of_failing_pods(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(status_module, "serving_fault", lambda _: None)


@mutant("crashes")
def does_not_follow_deployments(patch: pytest.MonkeyPatch) -> None:
    upsert = Store.upsert

    def without(self: Store, kind: Any, manifest: Any) -> set[Any]:
        owners = upsert(self, kind, manifest)
        return set() if kind is DEPLOYMENT else owners

    patch.setattr(Store, "upsert", without)


@mutant("last-gpu")
def makes_no_room(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "next_step", lambda *_, **__: Step())


@mutant("room-to-surge")
def stops_pods_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "next_step", lambda *_, **__: Step(0, 1))


@mutant("upgrade")
def renders_anew_each_time(patch: pytest.MonkeyPatch) -> None:
    pin = revision_module.pin

    def anew(service: Any, observed: Any, render: Any) -> Any:
        return replace(pin(service, observed, render), template=render(service))

    patch.setattr(reconcile, "pin", anew)


@mutant("upgrade")
def never_prunes_revisions(patch: pytest.MonkeyPatch) -> None:
    pin = revision_module.pin
    patch.setattr(reconcile, "pin", lambda *given: replace(pin(*given), obsolete=()))


@mutant("leader-cut-off")
def leads_on_without_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "is_deposed", lambda *_: False)
    patch.setattr(Fenced, "_leading", lambda self: self._port)


@mutant("leader-killed")
def leads_without_asking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Election, "leads", lambda *_: True)


@pytest.mark.parametrize("name", MUTANTS)
def test_play_tells_a_broken_operator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    promise, mutate = MUTANTS[name]
    mutate(monkeypatch)
    assert play(PROMISES[promise], 1).broken


def test_play_an_exception_in_a_look_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr(reconcile, "ready_event", fails)
    assert any("ZeroDivisionError" in sentence for sentence in play(PROMISES["steady-state"], 1).broken)


async def _nothing(world: World) -> str:
    world.start_operator()
    world.create("chat")
    await world.rest()
    return "nothing"


async def _fails(world: World) -> str:
    for number in range(7):
        world.judge.fail(f"fault {number}")
    return "something"


async def _goes_to_pieces(_: World) -> str:
    raise ValueError("no such thing")


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> None:
    plays = {"holds": _nothing, "fails": _fails, "goes-to-pieces": _goes_to_pieces}
    monkeypatch.setattr(program, "PROMISES", {name: Promise(name, f"It {name}.", one) for name, one in plays.items()})


@pytest.mark.usefixtures("promises")
def test_main_tells_which_promises_are_broken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines if line and line[0] in "✓✗"] == ["✓", "✗", "✗"]
    assert "    promised: It fails." in lines
    assert "    fault 0 (at 0.0 s)" in lines
    assert "    and 2 more" in lines
    assert any("no such thing" in line for line in lines)
    assert lines[-1].startswith("2 of 3 promises are broken, ")
    assert lines[-1].endswith(" The same again: octavo-operator selftest --seed 7 --only fails --only goes-to-pieces")


@pytest.mark.usefixtures("promises")
def test_main_only_one_that_holds_is_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "holds"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"1 promises held, .* The same again: octavo-operator selftest --seed \d+ --only holds", last)


def test_main_lists_the_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(PROMISES)


@pytest.mark.parametrize("arguments", [["--only", "no-such-promise"], ["--seed", "x"], ["steady-state"]])
def test_main_bad_arguments_end_with_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


def selftest(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octavo_operator", "selftest", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={"HOME": "/nonexistent", "PATH": os.environ["PATH"], "PYTHONHASHSEED": hash_seed},
    )


def test_program_same_seed_is_the_same_run_in_another_process() -> None:
    names = ("recreated", "leader-killed")
    arguments = ["--seed", "5", *(word for name in names for word in ("--only", name))]
    runs = [selftest(*arguments, hash_seed=seed) for seed in ("1", "2")]
    assert [one.returncode for one in runs] == [0, 0], runs[0].stdout
    first, second = (re.sub(r" +[\d.]+ s  ", " ", one.stdout).splitlines()[:2] for one in runs)
    assert first == second
    assert len(first) == 2


def test_program_needs_nothing_that_the_operators_image_lacks() -> None:
    code = (
        "import octavo_operator.selftest.program, sys; "
        "print([name for name in ('pytest', 'hypothesis', 'yaml', 'kopf', 'kubernetes') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
