"""Builds Octavo's images with buildah and brings them into the node, or to a registry.

Tags are hashes of what an image is made from, so that an unchanged image is neither built nor loaded again and a
changed one gets a new name: pods need no pull policy and no restart by hand. Layers live in the cache folder, shared
by all checkouts.
"""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import node, registries, store, system
from cluster.buildah import alone, buildah, run, storage
from cluster.errors import ClusterError
from cluster.layout import REPOSITORY, Layout, cache_folder
from cluster.progress import Progress

BASE_PACKAGES = ("python3-minimal", "python3-venv", "ca-certificates")

_KEEP = 2  # images of one name that stay in the build cache: one of ours, and one of another checkout


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made from.

    Attributes:
        name: `operator` or `runtime`; its file is `deploy/NAME.Containerfile`, with the stages `dependencies` and
            `package`.
        dependencies: files, relative to the repository, that decide the dependency layers.
        sources: files and folders that decide the layer above them, our own code.
        arguments: build arguments, NAME=VALUE.
        build_gib: disk space for building the dependency layers, GiB.
        expectation: said before that.
    """

    name: str
    dependencies: tuple[str, ...]
    sources: tuple[str, ...]
    arguments: tuple[str, ...]
    build_gib: float
    expectation: str

    @property
    def repository(self) -> str:
        """Its local name without a tag."""
        return f"localhost/octavo-{self.name}"


_SOURCES = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "deploy/containerignore")

RECIPES = (
    Recipe(
        "operator",
        ("deploy/operator.Containerfile", "deploy/build-tools.txt", "requirements/operator.txt"),
        (*_SOURCES, "operator"),
        (),
        build_gib=2.0,
        expectation="half a minute, once",
    ),
    Recipe(
        "runtime",
        ("deploy/runtime.Containerfile", "deploy/build-tools.txt", "requirements/runtime.txt"),
        (*_SOURCES, "runtime", "kernels"),
        ("REQUIREMENTS=runtime",),  # the node has no GPU
        build_gib=3.0,
        expectation="a minute, once",
    ),
)


def build(base: str | None, registry: str | None, progress: Progress) -> dict[str, str]:
    """Build what has changed; push it when there is a registry.

    Args:
        base: reference of the base image; None bootstraps one from Debian packages.
        registry: prefix such as `registry.example/team`, or None.
        progress: told about each stage.

    Returns:
        References by name (`operator`, `runtime`).

    Raises:
        ClusterError: no registry's name, not enough disk space, or a command failed.
    """
    if registry is not None:
        registries.check_name(registry)
    system.check_root()
    system.install(system.IMAGE_PACKAGES, progress)
    references: dict[str, str] = {}
    for recipe in RECIPES:
        reference = _build_recipe(recipe, base, progress)
        # Pushed before the next one is built: a registry that refuses is known after the small image.
        references[recipe.name] = reference if registry is None else registries.push(reference, registry, progress)
    return references


def _build_recipe(recipe: Recipe, base: str | None, progress: Progress) -> str:
    base_reference = base or _base_reference()
    dependencies_tag = tag(REPOSITORY, recipe.dependencies, " ".join((base_reference, *recipe.arguments)))
    dependencies = f"{recipe.repository}-dependencies:{dependencies_tag}"
    reference = f"{recipe.repository}:{tag(REPOSITORY, recipe.sources, dependencies)}"
    names = _names()
    if reference in names:
        return reference
    containerfile = REPOSITORY / "deploy" / f"{recipe.name}.Containerfile"
    if base is None and base_reference not in names:
        _bootstrap(base_reference, progress)
    if dependencies not in names:
        system.check_disk(cache_folder(), recipe.build_gib, f"building the {recipe.name} image")
        with progress.stage(f"building {dependencies} ({recipe.expectation})"):
            build_image(containerfile, REPOSITORY, dependencies, base_reference, "dependencies", recipe.arguments)
    with progress.stage(f"building {reference}"):
        build_image(containerfile, REPOSITORY, reference, base_reference, arguments=recipe.arguments)
        # Named, so that the next build finds it, whatever is forgotten now.
        package = f"{recipe.repository}-package:latest"
        build_image(containerfile, REPOSITORY, package, base_reference, "package", recipe.arguments)
    _forget_old(recipe.repository)
    _forget_old(f"{recipe.repository}-dependencies")
    return reference


def load(layout: Layout, reference: str, progress: Progress) -> None:
    """Bring an image from the build cache into the node: only the layers that the node does not have.

    Raises:
        ClusterError: no such image, no running cluster, not enough disk space, or containerd refused it.
    """
    if reference in node.image_names(layout):
        return
    layers = store.layers(storage() / "storage", reference)
    present = node.unpacked_layers(layout, [layer.diff_id for layer in layers])
    missing = sum(layer.size for layer in layers[present:])
    if not node.can_link(layout, storage()):
        system.check_disk(layout.state, 1.1 * missing / 2**30, f"loading {reference}")
    with progress.stage(f"loading {reference} ({missing / 1e6:,.0f} MB)"):
        config = json.loads(buildah("inspect", "--type=image", reference))["Config"].encode()
        node.add_image(layout, reference, config, layers, present)


def refresh(layout: Layout, references: dict[str, str], progress: Progress) -> None:
    """Load the images that `build` has made, and drop their unused predecessors from the node."""
    for recipe in RECIPES:
        load(layout, references[recipe.name], progress)
        node.forget_unused(layout, recipe.repository, references[recipe.name])


def tag(repository: Path, inputs: tuple[str, ...], below: str) -> str:
    """Hash of what an image is made from: names, modes and contents of files and folders, and the image below."""
    digest = hashlib.sha256(below.encode())
    for path in _files(repository, inputs):
        content = path.read_bytes()
        executable = bool(path.stat().st_mode & 0o100)
        digest.update(f"\n{path.relative_to(repository)} {executable} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _files(repository: Path, inputs: tuple[str, ...]) -> Iterator[Path]:
    for name in inputs:
        path = repository / name
        if not path.exists():
            raise ClusterError(f"{path} is missing; images are built from it")
        if path.is_file():
            yield path
            continue
        for file in sorted(path.rglob("*")):
            # The same that deploy/containerignore keeps out of the build.
            generated = any(part == "__pycache__" or part.endswith(".egg-info") for part in file.parts)
            if file.is_file() and not generated:
                yield file


def _base_reference() -> str:
    recipe = (REPOSITORY / "deploy" / "base.Containerfile").read_bytes()
    described = f"{platform.freedesktop_os_release()['ID']} {_suite()} {BASE_PACKAGES}".encode() + recipe
    return f"localhost/octavo-base:{hashlib.sha256(described).hexdigest()[:12]}"


def _bootstrap(reference: str, progress: Progress) -> None:
    """Make the default base image."""
    with (
        progress.stage(f"bootstrapping {reference} ({_suite()}: {', '.join(BASE_PACKAGES)})"),
        tempfile.TemporaryDirectory(dir=cache_folder(), prefix="base-") as folder,
    ):
        sources = Path(folder, "sources.list")
        sources.write_text(_package_sources())
        include = f"--include={','.join(BASE_PACKAGES)}"
        target = Path(folder, "rootfs.tar")
        run("mmdebstrap", "--quiet", "--variant=minbase", include, _suite(), str(target), str(sources))
        build_image(REPOSITORY / "deploy" / "base.Containerfile", Path(folder), reference, base=None)


def _suite() -> str:
    return platform.freedesktop_os_release()["VERSION_CODENAME"]


def _package_sources() -> str:
    """The machine's own sources of its distribution, in the one-line form, whatever form they are configured in."""
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)|$(ORIGIN)"
    listed = run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    origin = platform.freedesktop_os_release()["ID"]
    lines = [line.rpartition("|") for line in listed.splitlines()]
    sources = [source for source, _, from_ in lines if from_.lower() == origin]
    if not sources:
        raise ClusterError(
            f"apt knows no package source of {origin} (run apt-get update), so that no base image can be made; "
            "or pass one with --base"
        )
    return "\n".join(dict.fromkeys(sources)) + "\n"


def build_image(
    containerfile: Path,
    context: Path,
    reference: str,
    base: str | None,
    target: str = "",
    arguments: tuple[str, ...] = (),
) -> None:
    """Build one image into the cache.

    Args:
        containerfile: its recipe, which takes the base image as the build argument BASE.
        context: folder that the recipe copies from.
        reference: what it is called.
        base: reference of the base image; None for a recipe that starts from nothing.
        target: the stage to stop at; by default the last.
        arguments: further build arguments, NAME=VALUE.
    """
    command = ["bud", "--isolation=chroot", "--layers", f"--file={containerfile}", f"--tag={reference}"]
    command += [f"--build-arg={argument}" for argument in arguments]
    if target:
        command.append(f"--target={target}")
    if base is not None:
        uv_cache = _uv_cache()
        uv_cache.mkdir(parents=True, exist_ok=True)
        command += [f"--build-arg=BASE={base}", "--build-arg=UV_CACHE=--cache-dir=/uv-cache"]
        command += [f"--volume={uv_cache}:/uv-cache", f"--ignorefile={REPOSITORY}/deploy/containerignore"]
        # A machine behind a private certificate authority builds with the certificates that it trusts itself, and
        # one with a package index of its own finds it in these files.
        for path in ("/etc/ssl/certs", "/etc/pip.conf", "/etc/uv"):
            if Path(path).exists():
                command.append(f"--volume={path}:{path}:ro")
    with alone():
        buildah("rm", "--all")  # what a build that was killed has left behind
        buildah(*command, str(context))


def forget(name: str) -> None:
    """Remove an image from the cache, with the layers that no other image needs."""
    buildah("rmi", name)


def _uv_cache() -> Path:
    """Where uv keeps what it has downloaded, so that the image shares the wheels of the development environment."""
    if "UV_CACHE_DIR" in os.environ:
        return Path(os.environ["UV_CACHE_DIR"])
    return cache_folder().parent / "uv"


def _forget_old(repository: str) -> None:
    """Keep the newest few images of a name, and no layer that belongs to no name."""
    with alone():
        for name in stale(json.loads(buildah("images", "--json")), repository):
            forget(name)
        buildah("rmi", "--prune")


def stale(listed: list[dict[str, Any]], repository: str) -> list[str]:
    """References (from `buildah images --json`) of one name beyond the newest few."""
    newest = sorted(listed, key=lambda image: int(image["created"]), reverse=True)
    names = [name for image in newest for name in image["names"] or [] if name.startswith(f"{repository}:")]
    return names[_KEEP:]


def _names() -> set[str]:
    return {name for image in json.loads(buildah("images", "--json")) for name in image["names"] or []}
