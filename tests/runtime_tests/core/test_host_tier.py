"""The second tier's rules: what is kept, what goes first."""

from __future__ import annotations

from octavo_runtime.core.host_tier import HostTier


def test_put_second_copy_is_refused() -> None:
    tier = HostTier(2)
    assert tier.put(b"a") is not None
    assert tier.put(b"a") is None
    assert len(tier) == 1


def test_put_full_tier_gives_up_the_least_recently_used() -> None:
    tier = HostTier(2)
    tier.put(b"old")
    tier.put(b"used")
    tier.get(b"old")
    tier.put(b"new")
    assert b"old" in tier
    assert b"used" not in tier


def test_put_gives_up_nothing_that_is_wanted() -> None:
    tier = HostTier(2)
    tier.put(b"before")
    tier.want([b"before", b"after"])
    tier.put(b"after")
    assert tier.put(b"other") is None
    assert b"before" in tier
    assert b"after" in tier
    tier.check_invariants()


def test_unwant_last_want_lets_the_copy_go() -> None:
    tier = HostTier(1)
    tier.put(b"a")
    tier.want([b"a"])
    tier.want([b"a"])
    tier.unwant([b"a"])
    assert tier.put(b"b") is None
    tier.unwant([b"a"])
    assert tier.put(b"b") is not None
    tier.check_invariants()


def test_drop_makes_room() -> None:
    tier = HostTier(1)
    block = tier.put(b"a")
    tier.drop([b"a", b"unknown"])
    assert tier.put(b"b") == block
    tier.check_invariants()
