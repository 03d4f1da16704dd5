"""What the node's programs are told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from cluster import binaries, config
from cluster.layout import INSIDE, Layout

LAYOUT = Layout.of(Path("/somewhere/else/.cluster"))
FILES = config.files(LAYOUT, "localhost/pause:1")


def test_components_have_distinct_names_and_wait_for_the_api_server_except_its_own_needs() -> None:
    components = config.components(LAYOUT)
    names = [component.name for component in components]
    assert len(names) == len(set(names))
    assert [component.name for component in components if not component.needs_api] == [
        "etcd",
        "containerd",
        "kube-apiserver",
    ]


def test_components_are_programs_that_the_tool_builds_or_installs() -> None:
    built = {*binaries.KUBERNETES_COMMANDS, *(program.name for program in binaries.PROGRAMS)}
    for component in config.components(LAYOUT):
        program = Path(component.argv[0])
        assert program.name in built or component.argv[0] == "containerd"
        assert program.parent in {INSIDE / "bin", Path()}


def test_control_plane_has_no_node_and_kwok_reads_what_is_written() -> None:
    components = {component.name: component for component in config.control_plane(LAYOUT)}
    assert list(components) == ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
    assert f"--config={INSIDE}/kwok.yaml" in components["kwok"].argv
    stages = [json.loads(text) for text in FILES["kwok.yaml"].split("---")]
    assert {stage["spec"]["resourceRef"]["kind"] for stage in stages} == {"Node", "Pod"}


def test_configuration_never_names_the_state_directory() -> None:
    # Paths below it may be longer than a UNIX socket's name can be; the node knows it as /run/octavo.
    said = json.dumps([FILES, [component.argv for component in config.components(LAYOUT)]])
    assert str(LAYOUT.state) not in said


def test_files_that_components_read_are_written() -> None:
    written = {str(INSIDE / path) for path in FILES}
    for component in config.components(LAYOUT):
        for word in component.argv:
            value = word.partition("=")[2] or word
            if value.endswith((".json", ".toml", "Corefile")):
                assert value in written


def test_files_parse_and_agree_on_addresses() -> None:
    kubelet = json.loads(FILES["kubelet.json"])
    assert kubelet["clusterDNS"] == [str(LAYOUT.dns_service_ip)]
    assert kubelet["cgroupRoot"] == f"/{LAYOUT.name}"
    assert kubelet["containerRuntimeEndpoint"].endswith(tomllib.loads(FILES["containerd.toml"])["grpc"]["address"])
    network = json.loads(FILES["cni/10-pods.conflist"])["plugins"][0]["ipam"]["ranges"][0][0]["subnet"]
    assert network == json.loads(FILES["kube-proxy.json"])["clusterCIDR"] == str(LAYOUT.pods)
    assert FILES["resolv.conf"] == f"nameserver {LAYOUT.dns_service_ip}\n"
    assert f"bind {LAYOUT.node_ip}" in FILES["Corefile"]


def test_containerd_takes_its_sandbox_from_the_pause_image() -> None:
    plugin = tomllib.loads(FILES["containerd.toml"])["plugins"]["io.containerd.grpc.v1.cri"]
    assert plugin["sandbox_image"] == "localhost/pause:1"


def test_dns_service_leads_to_the_node() -> None:
    objects = {manifest["kind"]: manifest for manifest in config.base_objects(LAYOUT)}
    assert objects["Service"]["spec"]["clusterIP"] == str(LAYOUT.dns_service_ip)
    assert objects["EndpointSlice"]["endpoints"][0]["addresses"] == [str(LAYOUT.node_ip)]
    assert objects["EndpointSlice"]["metadata"]["labels"] == {"kubernetes.io/service-name": "kube-dns"}
    assert {port["name"] for port in objects["EndpointSlice"]["ports"]} == {
        port["name"] for port in objects["Service"]["spec"]["ports"]
    }


def test_kubeconfig_holds_one_user_of_one_cluster() -> None:
    value = json.loads(config.kubeconfig(LAYOUT, authority="YQ==", certificate="Yg==", key="Yw=="))
    assert value["current-context"] == value["contexts"][0]["name"]
    assert value["clusters"][0]["cluster"]["server"] == f"https://{LAYOUT.node_ip}:6443"
    assert value["users"][0]["user"] == {"client-certificate-data": "Yg==", "client-key-data": "Yw=="}
