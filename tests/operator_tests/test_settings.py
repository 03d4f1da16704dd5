import logging

import pytest

from octavo_operator.api.privileges import Privilege
from octavo_operator.errors import SettingsError
from octavo_operator.settings import Settings, parse_settings

IMAGE = ["--runtime-image", "image:1"]


def test_parse_settings_defaults() -> None:
    assert parse_settings(IMAGE, {}) == Settings(runtime_image="image:1")


def test_parse_settings_flags_win_over_the_environment() -> None:
    environment = {
        "OCTAVO_RUNTIME_IMAGE": "other:2",
        "OCTAVO_NAMESPACES": "team-a, team-b",
        "OCTAVO_LEASE": "octavo-system/octavo-operator",
        "OCTAVO_PORT": "9000",
        "OCTAVO_LOG_LEVEL": "debug",
        "OCTAVO_LOG_FORMAT": "text",
        "OCTAVO_ALLOW": "hostPath, privileged",
    }
    settings = parse_settings(["--port", "9001"], environment)
    assert settings == Settings(
        runtime_image="other:2",
        namespaces=("team-a", "team-b"),
        lease=("octavo-system", "octavo-operator"),
        port=9001,
        log_level=logging.DEBUG,
        json_logs=False,
        allowed=frozenset({Privilege.HOST_PATH, Privilege.PRIVILEGED}),
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "make images REGISTRY="),
        ([*IMAGE, "--port", "0"], "--port: '0' is not a whole number from 1 to 65535"),
        ([*IMAGE, "--port", "http"], "--port: 'http'"),
        ([*IMAGE, "--workers", "-1"], "--workers: '-1'"),
        ([*IMAGE, "--namespaces", "Team_A"], "'Team_A' is not a namespace's name"),
        ([*IMAGE, "--lease", "octavo-operator"], "'octavo-operator' is not NAMESPACE/NAME"),
        ([*IMAGE, "--lease", "a/b/c"], "'a/b/c' is not NAMESPACE/NAME"),
        ([*IMAGE, "--log-level", "loud"], "'loud' is none of debug, info, warning, error"),
        ([*IMAGE, "--log-format", "xml"], "'xml' is neither json nor text"),
        ([*IMAGE, "--allow", "hostpath"], "--allow: 'hostpath' is none of hostPath, hostNamespaces, privileged"),
        ([*IMAGE, "--resync-seconds", "1"], "from 5 to 86400"),
    ],
)
def test_parse_settings_refuses_with_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(arguments, {})
    assert sentence in str(caught.value)


def test_parse_settings_unknown_flag_ends_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_settings([*IMAGE, "--replicas", "2"], {})
    assert caught.value.code == 2
    assert "--replicas" in capsys.readouterr().err


def test_parse_settings_help_names_each_flag_and_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings(["--help"], {})
    text = capsys.readouterr().out
    for name in (
        "RUNTIME_IMAGE",
        "NAMESPACES",
        "LEASE",
        "KUBECONFIG",
        "HOST",
        "PORT",
        "WORKERS",
        "RESYNC_SECONDS",
        "LOG_LEVEL",
        "LOG_FORMAT",
        "ALLOW",
    ):
        assert f"--{name.lower().replace('_', '-')}" in text
        assert f"[OCTAVO_{name}]" in text
