"""The main job, as its users do it: `make demo`, then life with the service that it leaves behind."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import OpenAI

from cluster import models
from cluster.layout import Layout
from demo import CLAIM, MODEL, converted_model
from demo_harness import ISVC, START, Demo, call, metric, run_demo, service
from operator_harness import Kubectl, condition, eventually

pytestmark = pytest.mark.cluster


def test_demo_streams_an_answer_from_the_cluster_and_says_what_to_type_next(demo: Demo) -> None:
    assert "The capital of France is Paris." in demo.output
    assert "http://smollm2.default.svc" in demo.output
    for command in ("kubectl get isvc", "curl http://", "make cluster-down"):
        assert command in demo.output


def test_demo_on_a_cluster_that_is_there_copies_the_model_into_a_claim(
    demo: Demo, kubectl: Kubectl, cluster: Layout
) -> None:
    # What a cluster with storage provides by itself: a volume that the new claim can bind to.
    folder = cluster.state / "claims" / kubectl.namespace
    folder.mkdir(parents=True, mode=0o777)
    folder.chmod(0o777)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": kubectl.namespace},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": kubectl.namespace, "name": CLAIM},
            "hostPath": {"path": f"/run/octavo/claims/{kubectl.namespace}"},
        },
    }
    kubectl.apply(volume)
    try:
        operator = demo.kubectl.within("octavo-system").get("deployment", "octavo-operator")
        [container] = operator["spec"]["template"]["spec"]["containers"]
        server = demo.pods()[0]["spec"]["containers"][0]
        output = run_demo(
            f"KUBECONFIG={cluster.kubeconfig}",
            f"OPERATOR_IMAGE={container['image']}",
            f"RUNTIME_IMAGE={server['image']}",
            f"NAMESPACE={kubectl.namespace}",
            path=demo.path,
        )
        assert "The capital of France is Paris." in output
        assert "port-forward service/smollm2" in output
        kubectl("delete", ISVC, "smollm2")
        eventually(lambda: not kubectl.get("pods"), 60)
    finally:
        kubectl("delete", "pv", kubectl.namespace, "--wait=false")
        shutil.rmtree(folder)


def test_openai_client_streams_from_the_service(demo: Demo) -> None:
    stream = demo.client().chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Count from one to ten."}],
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(texts) > 5, "it came in one piece"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 24
    whole = demo.client().chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Count from one to ten."}],
        temperature=0,
        max_tokens=24,
    )
    assert whole.choices[0].message.content == "".join(texts)


def test_kubectl_scale_two_replicas_both_answer(demo: Demo) -> None:
    demo.scale(2)
    addresses = [pod["status"]["podIP"] for pod in demo.pods()]
    assert len(addresses) == 2
    for address in addresses:
        client = OpenAI(base_url=f"http://{address}:8000/v1", api_key="none", max_retries=0)
        assert client.completions.create(model="smollm2", prompt="One, two,", max_tokens=3).choices[0].text
    demo.scale(1)


def test_pod_deleted_while_it_streams_ends_the_stream_whole_and_fails_no_request(demo: Demo) -> None:
    demo.scale(2)
    tokens = 300  # more than the pod's five seconds of grace before SIGTERM
    received: list[str] = []
    ends: list[str | None] = []

    def stream() -> None:
        for chunk in demo.client().completions.create(
            model="smollm2",
            prompt="Once upon a time",
            max_tokens=tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            received.append(chunk.choices[0].text)
            ends.append(chunk.choices[0].finish_reason)

    gone = threading.Event()

    def ask_meanwhile() -> int:
        """How many requests were answered; one that is not raises."""
        answered = 0
        while not gone.wait(0.2):
            call(demo.address, 80, "/v1/completions", {"model": "smollm2", "prompt": "Hello", "max_tokens": 1})
            answered += 1
        return answered

    with ThreadPoolExecutor(max_workers=2) as threads:
        try:
            streaming = threads.submit(stream)
            eventually(lambda: len(received) > 3, 60)
            [streams] = [
                pod["metadata"]["name"]
                for pod in demo.pods()
                if metric(pod["status"]["podIP"], "vllm:num_requests_running") == 1
            ]
            asking = threads.submit(ask_meanwhile)
            demo.kubectl("delete", "pod", streams, "--wait=false")
            streaming.result(timeout=300)
            eventually(lambda: streams not in [pod["metadata"]["name"] for pod in demo.pods()], 60)
        finally:
            gone.set()
        assert asking.result(timeout=60) > 5
    assert ends[-1] == "length"
    assert len([text for text in received if text]) > tokens // 2
    demo.scale(1)


def test_rollout_under_streaming_load_cuts_no_stream(demo: Demo) -> None:
    """Clients that stream one answer after the other while every pod is replaced: each stream comes to its end."""
    demo.scale(1)
    before = {pod["metadata"]["uid"] for pod in demo.pods()}
    over = threading.Event()

    def stream_until_over() -> list[int]:
        """How many pieces each stream had; one that is refused or cut raises."""
        lengths = []
        while not over.is_set():
            chunks = list(
                demo.client().completions.create(
                    model="smollm2",
                    prompt="Once upon a time",
                    max_tokens=120,
                    temperature=0,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
            )
            assert chunks[-1].choices[0].finish_reason == "length"
            lengths.append(len(chunks))
        return lengths

    def is_replaced() -> bool:
        assert not any(client.done() for client in clients), "a stream was cut"
        return condition(demo.kubectl.get(ISVC, "smollm2"))["status"] == "True" and not before & {
            pod["metadata"]["uid"] for pod in demo.pods()
        }

    with ThreadPoolExecutor(max_workers=3) as threads:
        clients = [threads.submit(stream_until_over) for _ in range(3)]
        try:
            demo.kubectl.patch("isvc/smollm2", {"spec": {"runtime": {"maxNumSeqs": 32}}})
            eventually(is_replaced, START, every=1)
        finally:
            over.set()
        finished = [length for client in clients for length in client.result(timeout=300)]
    assert len(finished) > 5
    assert min(finished) > 60
    demo.kubectl.patch("isvc/smollm2", {"spec": {"runtime": {"maxNumSeqs": None}}})
    demo.scale(1)


def test_service_deleted_by_hand_returns_and_answers(demo: Demo) -> None:
    before = demo.kubectl.get("service", "smollm2")["metadata"]["uid"]
    demo.kubectl("delete", "service", "smollm2")
    eventually(lambda: demo.kubectl.get("service", "smollm2")["metadata"]["uid"] != before, 10)
    answer = eventually(lambda: demo.client().models.list().data, 30)
    assert [model.id for model in answer] == ["smollm2"]


@pytest.mark.usefixtures("demo")
def test_delete_leaves_nothing(cluster: Layout, kubectl: Kubectl) -> None:
    models.publish(cluster, converted_model(), MODEL, CLAIM, kubectl.namespace)
    kubectl.apply(service("short", f"pvc://{CLAIM}/{MODEL}"))
    kubectl("wait", "isvc/short", "--for=condition=Ready", f"--timeout={START:.0f}s")
    kubectl("delete", "isvc", "short")
    kinds = "inferenceservices,deployments,replicasets,pods,services,endpointslices"
    eventually(lambda: not kubectl.get(kinds), 60)


@pytest.fixture
def broken(cluster: Layout, kubectl: Kubectl) -> Iterator[Kubectl]:
    """A claim `broken` with a model whose shard was cut short, and one without config.json; beside it the whole one."""
    source = converted_model()
    folder = cluster.state / "claims" / kubectl.namespace
    for name in ("truncated", "empty"):
        (folder / name).mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder / "truncated")
    with (source / "model.safetensors").open("rb") as whole:
        (folder / "truncated" / "model.safetensors").write_bytes(whole.read(1_000_000))
    models.publish(cluster, folder, kubectl.namespace, "broken", kubectl.namespace)
    models.publish(cluster, source, MODEL, CLAIM, kubectl.namespace)
    yield kubectl
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("uri", "runtime", "reason", "says"),
    [
        ("pvc://broken/NAMESPACE/truncated", {}, "BadWeights", "model.safetensors"),
        ("pvc://broken/NAMESPACE/empty", {}, "ModelNotFound", "config.json"),
        (f"pvc://{CLAIM}/{MODEL}", {"kvCacheMemory": "1Mi", "maxModelLen": 4096}, "NotEnoughMemoryForKV", "4096"),
    ],
    ids=["truncated shard", "no config", "no room for KV"],
)
@pytest.mark.usefixtures("demo")
def test_condition_tells_why_the_runtime_ended(
    broken: Kubectl, uri: str, runtime: dict[str, object], reason: str, says: str
) -> None:
    broken.apply(service("broken", uri.replace("NAMESPACE", broken.namespace), **runtime))
    found = eventually(
        lambda: (ready := condition(broken.get(ISVC, "broken")))["reason"] == reason and ready, 120, every=0.3
    )
    assert isinstance(found, dict)
    assert found["status"] == "False"
    assert says in found["message"]
    broken("delete", ISVC, "broken")
