import pytest

from octavo_operator.promises import PROMISES
from octavo_operator.testing import FakeCluster


@pytest.mark.parametrize("promise", PROMISES)
async def test_fake_cluster_keeps_the_promises_of_an_api_server(promise: str) -> None:
    cluster = FakeCluster()
    cluster.namespaces = {"one"}
    await PROMISES[promise](cluster, "one")
