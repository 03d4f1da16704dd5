"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import logging

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from octavo_runtime.errors import InvalidRequest, OctavoError

__all__ = ["HTTP_LOG", "Unavailable", "error_body", "error_response", "errors_as_json"]

_log = logging.getLogger(__name__)


class _NoHttp(logging.Filter):
    """Whoever sends what is no HTTP, such as a port scan, makes a line of the log, not a fault of ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            record.msg, record.args = f"{record.getMessage()}: {' '.join(str(error).split())}", None
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = None
        return True


HTTP_LOG = logging.getLogger("octavo_runtime.server.http")
"""What aiohttp has to say of connections."""
HTTP_LOG.addFilter(_NoHttp())


class Unavailable(OctavoError):
    """The request is fine, but not now: the client should try again, here or at another replica.

    Attributes:
        message: Why.
        code: A stable word for it.
        retry_after: Seconds.
    """

    def __init__(self, message: str, *, code: str, retry_after: int) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retry_after = retry_after


def error_body(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, object]:
    """The JSON object of an error."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """An error as an answer of its own."""
    kind = "server_error" if status >= web.HTTPInternalServerError.status_code else "invalid_request_error"
    body = msgspec.json.encode(error_body(message, kind=kind, param=param, code=code))
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Maps whatever a handler raises to an answer."""
    try:
        return await handler(request)
    except InvalidRequest as error:
        return error_response(error.status, error.message, param=error.param, code=error.code)
    except Unavailable as error:
        headers = {"Retry-After": str(error.retry_after)}
        return error_response(503, error.message, code=error.code, headers=headers)
    except web.HTTPRequestEntityTooLarge:
        limit = request.client_max_size
        return error_response(413, f"the body is larger than the {limit} bytes that this server takes")
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.path} takes {allowed}, not {request.method}"
        return error_response(405, message, headers={"Allow": allowed})
    except web.HTTPNotFound:
        return error_response(404, f"there is no {request.path} here", code="unknown_url")
    except web.HTTPException as error:
        return error_response(error.status, error.reason)
    except Exception as error:  # noqa: BLE001 - the last resort of a request
        _log.exception("%s %s failed", request.method, request.path)
        return error_response(500, f"a fault of the server: {type(error).__name__}")
