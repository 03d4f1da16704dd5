"""Every configuration file and command line of the node, as plain values from a layout.

Kubernetes' own files are written as JSON, which is YAML too.
"""

import json
from dataclasses import dataclass
from typing import Any

from cluster.layout import API_PORT, INSIDE, NODE, Layout

PKI = INSIDE / "pki"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

# The kubelet insists on these values. It gets them as files of its own mount namespace (see init), so that a
# development machine does not start to reboot on a kernel oops.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True, slots=True)
class Component:
    """One long-running program of the node.

    Attributes:
        name: what `logs` calls it.
        argv: command line, in the cluster's namespaces.
        needs_api: started only once the API server is ready. A controller manager that comes earlier exits,
            because its RBAC rules do not exist yet.
    """

    name: str
    argv: tuple[str, ...]
    needs_api: bool


def components(layout: Layout) -> list[Component]:
    """The programs in the order of their start."""
    bin_ = INSIDE / "bin"

    def kubernetes(name: str, *flags: str, needs_api: bool = True) -> Component:
        return Component(name, (str(bin_ / name), *flags), needs_api)

    def with_kubeconfig(user: str) -> tuple[str, ...]:
        path = INSIDE / f"{user}.kubeconfig"
        return tuple(
            f"--{flag}={path}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        )

    return [
        kubernetes(
            "etcd",
            f"--data-dir={INSIDE}/etcd",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # the data does not outlive the cluster
            "--log-level=warn",
            needs_api=False,
        ),
        Component("containerd", ("containerd", f"--config={INSIDE}/containerd.toml"), needs_api=False),
        kubernetes(
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            f"--secure-port={API_PORT}",
            f"--advertise-address={layout.node_ip}",
            f"--service-cluster-ip-range={layout.services}",
            f"--client-ca-file={PKI}/ca.crt",
            f"--tls-cert-file={PKI}/apiserver.crt",
            f"--tls-private-key-file={PKI}/apiserver.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={PKI}/service-accounts.pub",
            f"--service-account-signing-key-file={PKI}/service-accounts.key",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            "--enable-admission-plugins=NodeRestriction",
            f"--kubelet-client-certificate={PKI}/apiserver-kubelet.crt",
            f"--kubelet-client-key={PKI}/apiserver-kubelet.key",
            f"--kubelet-certificate-authority={PKI}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            # Aggregated APIs (metrics-server and its like).
            f"--requestheader-client-ca-file={PKI}/ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={PKI}/front-proxy-client.crt",
            f"--proxy-client-key-file={PKI}/front-proxy-client.key",
            needs_api=False,
        ),
        kubernetes(
            "kube-controller-manager",
            *with_kubeconfig("kube-controller-manager"),
            f"--service-account-private-key-file={PKI}/service-accounts.key",
            f"--root-ca-file={PKI}/ca.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            # At the default of 15 seconds a claim that was seen before its volume waits that long.
            "--pvclaimbinder-sync-period=1s",
            # At the default of 20 requests per second a test with 1,000 pods takes seven times as long.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ),
        kubernetes(
            "kube-scheduler",
            *with_kubeconfig("kube-scheduler"),
            "--leader-elect=false",
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
        ),
        kubernetes(
            "kubelet",
            f"--config={INSIDE}/kubelet.json",
            f"--kubeconfig={INSIDE}/kubelet.kubeconfig",
            f"--hostname-override={NODE}",
            f"--root-dir={INSIDE}/kubelet",
            f"--node-ip={layout.node_ip}",
        ),
        kubernetes("kube-proxy", f"--config={INSIDE}/kube-proxy.json", f"--hostname-override={NODE}"),
        Component("coredns", (str(bin_ / "coredns"), "-conf", f"{INSIDE}/Corefile"), needs_api=True),
    ]


def control_plane(layout: Layout) -> list[Component]:
    """The programs of a cluster without a node: kwok plays nodes and pods, so that a small machine holds thousands."""
    needed = {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    kwok = Component(
        "kwok",
        (
            str(INSIDE / "bin" / "kwok"),
            f"--kubeconfig={INSIDE}/kubeconfig",
            f"--config={INSIDE}/kwok.yaml",
            "--manage-all-nodes=true",
            f"--node-ip={layout.node_ip}",
            "--cidr=100.64.0.0/12",  # the pods answer nowhere, and there are more of them than a real node's addresses
            "--node-lease-duration-seconds=40",
        ),
        needs_api=True,
    )
    return [component for component in components(layout) if component.name in needed] + [kwok]


def files(layout: Layout, pause_image: str) -> dict[str, str]:
    """Contents of the files below the state directory, by relative path."""
    return {
        "containerd.toml": _containerd(pause_image),
        "cni/10-pods.conflist": json.dumps(_cni(layout), indent=1),
        "kubelet.json": json.dumps(_kubelet(layout), indent=1),
        "kube-proxy.json": json.dumps(_kube_proxy(layout), indent=1),
        "Corefile": _corefile(layout),
        "kwok.yaml": "\n---\n".join(json.dumps(stage, indent=1) for stage in _stages()),
        "resolv.conf": f"nameserver {layout.dns_service_ip}\n",
    }


def _containerd(pause_image: str) -> str:
    return f"""\
version = 2
root = "{INSIDE}/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.native",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause_image}"
  # Without CAP_SYS_RESOURCE, as in many containers and virtual machines, no process may lower its oom_score_adj.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{INSIDE}/registries"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{INSIDE}/cni"
"""


def _cni(layout: Layout) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": str(layout.pods)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def _kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "x509": {"clientCAFile": f"{PKI}/ca.crt"},
            "webhook": {"enabled": True},
            "anonymous": {"enabled": False},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{PKI}/kubelet.crt",
        "tlsPrivateKeyFile": f"{PKI}/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "clusterDNS": [str(layout.dns_service_ip)],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{INSIDE}/resolv.conf",
        "podLogsDir": f"{INSIDE}/pod-logs",
        "volumePluginDir": f"{INSIDE}/volume-plugins",
        # Images are loaded by hand and must stay; the disk is the developer's to watch.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "registryPullQPS": 0,
        "serializeImagePulls": False,
    }


def _kube_proxy(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{INSIDE}/kube-proxy.kubeconfig"},
        "clusterCIDR": str(layout.pods),
        "conntrack": {"maxPerCore": 0},  # the table's size belongs to the whole machine
        "healthzBindAddress": "127.0.0.1:10256",
    }


def _corefile(layout: Layout) -> str:
    return f"""\
.:53 {{
  bind {layout.node_ip}
  errors
  ready {layout.node_ip}:8181
  kubernetes cluster.local {{
    kubeconfig {INSIDE}/coredns.kubeconfig
    ttl 5
  }}
}}
"""


def _stages() -> list[dict[str, Any]]:
    """What kwok does: nodes are ready at once, pods run and answer at once, and go when they are told to."""
    ready = '.status.conditions.[] | select( .type == "Ready" ) | .status'
    not_ready = {"key": ready, "operator": "NotIn", "values": ["True"]}
    leaving = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    conditions = "{{ $now := Now }}\nconditions:\n"
    condition = "- {type: %s, status: 'True', reason: Fake, lastTransitionTime: {{ $now | Quote }}}\n"
    node = (
        conditions
        + condition % "Ready"
        + "".join(f"{part}: {{cpu: 1k, memory: 1Ti, pods: 1M}}\n" for part in ("capacity", "allocatable"))
    )
    pod = (
        conditions
        + "".join(condition % kind for kind in ("Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"))
        + """\
initContainerStatuses:
{{ range .spec.initContainers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  restartCount: 0
  state: {terminated: {exitCode: 0, reason: Completed, startedAt: {{ $now | Quote }}, finishedAt: {{ $now | Quote }}}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
{{ with PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace }}
podIP: {{ . | Quote }}
podIPs: [{ip: {{ . | Quote }}}]
{{ end }}
phase: Running
startTime: {{ $now | Quote }}
"""
    )

    def stage(name: str, kind: str, *matches: dict[str, Any], **then: Any) -> dict[str, Any]:
        return {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "Stage",
            "metadata": {"name": name},
            "spec": {
                "resourceRef": {"apiGroup": "v1", "kind": kind},
                "selector": {"matchExpressions": list(matches)},
                "next": then,
            },
        }

    return [
        stage("node-ready", "Node", not_ready, statusTemplate=node),
        stage("pod-ready", "Pod", leaving | {"operator": "DoesNotExist"}, not_ready, statusTemplate=pod),
        stage("pod-gone", "Pod", leaving, delete=True),
    ]


def base_objects(layout: Layout) -> list[dict[str, Any]]:
    """What a cluster has before anybody uses it: the DNS server's rights and its Service.

    CoreDNS is a process of the node, not a pod, so that its endpoint is written by hand.
    """
    labels = {"kubernetes.io/service-name": "kube-dns"}
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "coredns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "coredns"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"},
            "subjects": [{"kind": "User", "name": "coredns", "apiGroup": "rbac.authorization.k8s.io"}],
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system"},
            "spec": {
                "clusterIP": str(layout.dns_service_ip),
                "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in ports],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "kube-dns-node", "namespace": "kube-system", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [str(layout.node_ip)], "conditions": {"ready": True}}],
            "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in ports],
        },
    ]


def kubeconfig(layout: Layout, *, authority: str, certificate: str, key: str) -> str:
    """A kubeconfig for one user; the three values are base64 of PEM."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": layout.name, "cluster": {"server": layout.api_url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": "user", "user": {"client-certificate-data": certificate, "client-key-data": key}}],
            "contexts": [{"name": layout.name, "context": {"cluster": layout.name, "user": "user"}}],
            "current-context": layout.name,
        },
        indent=1,
    )
