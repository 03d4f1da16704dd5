"""Names and addresses: two clusters on one machine must never meet."""

from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import namespaces
from cluster.layout import Layout

STATES = st.text(alphabet="abcdefghij/._-", min_size=1, max_size=40).map(
    lambda text: Path("/nowhere") / text.strip("/")
)


@given(STATES)
def test_layout_addresses_lie_in_its_block_and_apart(state: Path) -> None:
    layout = Layout.of(state)
    for one, other in combinations([layout.services, layout.pods, layout.cable], 2):
        assert not one.overlaps(other)
    for network in (layout.services, layout.pods, layout.cable):
        assert network.subnet_of(layout.block)
    assert layout.block.subnet_of(IPv4Network("10.0.0.0/8"))
    assert {layout.host_ip, layout.node_ip} == set(layout.cable.hosts())
    assert layout.api_service_ip in layout.services
    assert layout.dns_service_ip in layout.services


def test_layout_has_addresses_for_a_service_of_each_of_5000_objects() -> None:
    assert Layout.of(Path("/a")).services.num_addresses > 5_000 * 1.5


@given(STATES)
def test_layout_interface_name_fits_the_kernel(state: Path) -> None:
    assert len(Layout.of(state).link) <= 15


def test_layout_of_two_states_differs_in_everything() -> None:
    one, other = Layout.of(Path("/a/.cluster")), Layout.of(Path("/b/.cluster"))
    assert one.name != other.name
    assert one.link != other.link
    assert not one.block.overlaps(other.block)


def test_layout_is_the_same_through_a_link_and_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert Layout.of(Path("link/x")) == Layout.of(Path("real/x")) == Layout.of(tmp_path / "real" / "x")


@pytest.mark.parametrize(
    ("prefix", "conflict"),
    [(32, True), (24, True), (16, True), (12, True), (8, False)],  # a VPN's 10.0.0.0/8 is wider than ours: no conflict
)
def test_overlapping_route_is_one_that_is_specific(prefix: int, conflict: bool) -> None:
    layout = Layout.of(Path("/a"))
    taken = IPv4Network((int(layout.pods[7]), prefix), strict=False) if prefix < 32 else layout.pods[7]
    found = namespaces.overlapping_route([{"dst": str(taken), "dev": "wg0"}], layout)
    assert (found is not None) is conflict
    if found is not None:
        assert "wg0" in found


def test_overlapping_route_ignores_default_own_and_distant_ones() -> None:
    layout = Layout.of(Path("/a"))
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "192.0.2.0/24", "dev": "eth0"},
        {"dst": str(layout.pods), "dev": layout.link},
    ]
    assert namespaces.overlapping_route(routes, layout) is None
