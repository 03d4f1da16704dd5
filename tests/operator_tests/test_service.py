import pytest

from octavo_operator.api.service import InferenceService
from octavo_operator.errors import SpecInvalid
from octavo_operator.testing import inference_service


def test_parse_names_each_unknown_field() -> None:
    manifest = inference_service(runtime={"turbo": True, "dtype": "int3"})
    manifest["metadata"] |= {"uid": "uid-1", "generation": 1}
    with pytest.raises(SpecInvalid, match=r"spec\.runtime\.turbo.*|spec\.runtime\.dtype.*") as caught:
        InferenceService.parse(manifest)
    assert "spec.runtime.turbo" in str(caught.value)
    assert "spec.runtime.dtype" in str(caught.value)
    assert "upgrade the operator" in str(caught.value)


def test_parse_takes_the_defaults_of_the_schema() -> None:
    manifest = inference_service()
    manifest["metadata"] |= {"uid": "uid-1", "generation": 1}
    bare = {**manifest, "spec": {"model": manifest["spec"]["model"]}}
    assert InferenceService.parse(manifest) == InferenceService.parse(bare)
