"""Certificates, object paths, volumes, disk space and progress."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from cluster import api, config, lifecycle, models, namespaces, pki, system
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.progress import Progress


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    layout = Layout.of(tmp_path_factory.mktemp("state"))
    pki.create(layout)
    return layout


def test_create_makes_certificates_that_one_authority_signed(certified: Layout) -> None:
    folder = certified.state / "pki"
    signed = sorted(path for path in folder.glob("*.crt") if path.name != "ca.crt")
    assert len(signed) == 9
    subprocess.run(["openssl", "verify", "-CAfile", folder / "ca.crt", *signed], check=True, capture_output=True)


def test_create_writes_a_private_kubeconfig_for_each_user_of_the_api(certified: Layout) -> None:
    wanted = {word.rpartition("/")[2] for c in config.components(certified) for word in c.argv if "kubeconfig=" in word}
    assert wanted == {"kube-controller-manager.kubeconfig", "kube-scheduler.kubeconfig", "kubelet.kubeconfig"}
    for name in (*wanted, "kube-proxy.kubeconfig", "coredns.kubeconfig", "kubeconfig"):
        path = certified.state / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["clusters"][0]["cluster"]["server"] == certified.api_url


@pytest.mark.parametrize("name", ["apiserver", "kubelet"])
def test_create_puts_the_nodes_address_into_server_certificates(certified: Layout, name: str) -> None:
    shown = subprocess.run(
        ["openssl", "x509", "-in", certified.state / "pki" / f"{name}.crt", "-noout", "-ext", "subjectAltName"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert f"IP Address:{certified.node_ip}" in shown.stdout


@pytest.mark.parametrize(
    ("manifest", "path"),
    [
        (
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "b"}},
            "/api/v1/namespaces/b/services/a",
        ),
        ({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"}}, "/api/v1/persistentvolumes/a"),
        (
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a", "namespace": "b"}},
            "/apis/discovery.k8s.io/v1/namespaces/b/endpointslices/a",
        ),
    ],
)
def test_object_path_follows_group_and_namespace(manifest: dict[str, object], path: str) -> None:
    assert api.object_path(manifest) == path


def test_object_path_is_known_for_everything_that_the_tool_applies() -> None:
    layout = Layout.of(Path("/a"))
    for manifest in (*config.base_objects(layout), *models.manifests("models", "default", 1)):
        assert api.object_path(manifest).endswith(manifest["metadata"]["name"])


def test_manifests_of_a_model_bind_to_each_other_only() -> None:
    volume, claim = models.manifests("models", "team", 270_000_000)
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    reference = volume["spec"]["claimRef"]
    assert (reference["namespace"], reference["name"]) == ("team", "models")
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    # Without this a default storage class would make a volume of its own.
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""


def test_manifests_of_two_namespaces_share_a_folder_not_a_volume() -> None:
    (one, _), (other, _) = models.manifests("models", "a", 1), models.manifests("models", "b", 1)
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one["spec"]["hostPath"] == other["spec"]["hostPath"]


@pytest.mark.parametrize("folder", ["missing", "/run/models/x"])
def test_publish_refuses_what_pods_cannot_see(folder: str) -> None:
    with pytest.raises(ClusterError, match=Path(folder).name):
        models.publish(Layout.of(Path("/a")), Path(folder), "m", "models", "default")


@pytest.mark.parametrize(("private", "mode"), [("", 0o700), ("config.json", 0o640), ("part", 0o751)])
def test_publish_refuses_what_pods_cannot_read(tmp_path: Path, private: str, mode: int) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "part").mkdir()
    (tmp_path / private).chmod(mode)
    with pytest.raises(ClusterError, match=rf"{(tmp_path / private).name} cannot be read .* chmod -R a\+rX"):
        models.publish(Layout.of(Path("/a")), tmp_path, "m", "models", "default")


def test_check_disk_says_what_is_needed_and_what_is_free(tmp_path: Path) -> None:
    system.check_disk(tmp_path / "not" / "yet", 0.0, "nothing")
    with pytest.raises(ClusterError, match=r"a palace needs 1000000\.0 GiB .* [\d.]+ GiB are free"):
        system.check_disk(tmp_path / "not" / "yet", 1e6, "a palace")


def test_mounts_below_finds_mount_points_and_no_lookalikes() -> None:
    assert "/proc" in namespaces.mounts_below(Path("/"))
    assert namespaces.mounts_below(Path("/proc")) != []
    assert namespaces.mounts_below(Path("/pro")) == []


def test_tail_shows_the_end_and_survives_a_missing_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert namespaces.tail(log, lines=2) == "    line 98\n    line 99"
    assert "no log" in namespaces.tail(tmp_path / "missing.log")


def test_post_mortem_names_the_component_and_shows_the_end_of_its_log(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path)
    layout.logs.mkdir()
    (layout.logs / "kubelet.log").write_text("E1 cannot find the moon\n")
    (tmp_path / "failed.json").write_text('{"component": "kubelet", "reason": "ended with exit code 1"}')
    assert (
        lifecycle.post_mortem(layout)
        == "kubelet ended with exit code 1; the end of its log:\n    E1 cannot find the moon"
    )


def test_post_mortem_without_a_culprit_shows_the_first_process(tmp_path: Path) -> None:
    layout = Layout.of(tmp_path)
    layout.logs.mkdir()
    (layout.logs / "init.log").write_text("mount: permission denied\n")
    assert "mount: permission denied" in lifecycle.post_mortem(layout)


def test_progress_times_a_stage_and_gives_notes_their_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with progress.stage("one"):
        pass
    with progress.stage("two"):
        progress.note("halfway")
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("cluster: one … 0.")
    assert said[1:3] == ["cluster: two …", "cluster: halfway"]
    assert said[3].startswith("cluster: two: done in 0.")


def test_progress_ends_the_line_of_a_failed_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClusterError), Progress().stage("one"):
        raise ClusterError("no")
    assert capsys.readouterr().err == "cluster: one …\n"
