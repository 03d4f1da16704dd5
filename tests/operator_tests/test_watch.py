import itertools
from typing import Any

import kopf

from octavo_operator.api.names import WATCHED
from octavo_operator.cluster.client import Connection
from octavo_operator.core.silence import PATIENCE_SECONDS
from octavo_operator.handlers.watch import _configure, _login, _registry


async def nowhere() -> Connection:
    raise AssertionError


def test_registry_only_watches() -> None:
    """No handler that would make kopf write a finalizer or an annotation."""
    registry = _registry(print, nowhere)
    assert len(registry._watching.get_all_handlers()) == len(WATCHED)
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_configure_backoffs_never_end_and_start_anew_each_time() -> None:
    settings = kopf.OperatorSettings()
    _configure(settings)
    backoffs: Any = settings.networking.error_backoffs
    for _ in range(2):
        assert list(itertools.islice(backoffs, 10_000)) == [1.0] * 10_000


def test_configure_ends_a_watch_on_which_nothing_comes_before_it_is_called_silent() -> None:
    settings = kopf.OperatorSettings()
    _configure(settings)
    watching = settings.watching
    assert watching.inactivity_timeout is not None
    assert watching.server_timeout is not None
    assert 60 < watching.inactivity_timeout < PATIENCE_SECONDS, "bookmarks come each minute"
    assert watching.server_timeout <= 300
    assert watching.connect_timeout == settings.networking.connect_timeout == 5
    assert settings.networking.request_timeout == 30


def test_configure_selects_in_the_server() -> None:
    settings = kopf.OperatorSettings()
    _configure(settings)
    selectors = dict(settings.watching.label_selectors)
    assert len(selectors) == len(WATCHED) - 1
    assert set(selectors.values()) == {"app.kubernetes.io/managed-by=octavo-operator"}


def test_login_splits_the_authorization() -> None:
    def token(authorization: str | None) -> tuple[str | None, str | None]:
        info = _login(
            Connection(
                "https://x",
                verify=True,
                ca_path=None,
                certificate_path=None,
                key_path=None,
                authorization=authorization,
            )
        )
        assert info.expiration is not None
        return info.scheme, info.token

    assert token("Bearer abc") == ("Bearer", "abc")
    assert token("abc") == (None, "abc")
    assert token(None) == (None, None)
