"""Errors in OpenAI's form, and those that only a server has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from neuron_spec.errors import NeuronSpecError, RequestError

_MAX_TOLD = 16  # faults of one request
_LONGEST_NAME = 200
_TYPE_NAME = re.compile(r"str|int|float|bool|(list|constrained-str|function-\w+)\[.*\]")


class UnavailableError(NeuronSpecError):
    """Not now: too many requests, no time left, or the server is going down."""

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(
    message: str,
    status: int,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """The same as a response."""
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    # What a client sent may hold lone surrogates, which no response can carry.
    printable = message.encode("utf-8", "backslashreplace").decode("utf-8")
    body = error_body(printable, kind=kind, param=param, code=code)
    return JSONResponse(body, status_code=status, headers=headers)


_KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error in OpenAI's form."""
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(UnavailableError, _unavailable)
    app.add_exception_handler(NeuronSpecError, _failed)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    if any(fault["type"] == "json_invalid" for fault in faults):
        return error_response(f"the body is not JSON: {faults[0]['ctx']['error']}", 400)
    told = faults[:_MAX_TOLD]
    fields = [_field(fault["loc"]) for fault in told]
    lines = [
        f"{field or 'body'}: {fault['msg']}" for field, fault in zip(fields, told, strict=True)
    ]
    if len(faults) > len(told):
        lines.append(f"and {len(faults) - len(told)} more")
    return error_response("; ".join(lines), 400, param=next(iter(fields), None))


def _field(location: Sequence[int | str]) -> str | None:
    """Dotted name of a field, up to where pydantic goes on with a type's name."""
    parts = takewhile(lambda part: not _TYPE_NAME.fullmatch(part), map(str, location[1:]))
    return ".".join(parts)[:_LONGEST_NAME] or None


async def _refused(request: Request, error: Exception) -> JSONResponse:
    field = error.field if isinstance(error, RequestError) else None
    if field == "prompt" and request.url.path.endswith("/chat/completions"):
        field = "messages"  # the engine knows prompts only
    return error_response(str(error), 404 if field == "model" else 400, param=field)


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, UnavailableError):
        return await _unexpected(request, error)
    wait = error.retry_after_s
    headers = None if wait is None else {"Retry-After": str(wait)}
    return error_response(str(error), error.status, headers=headers)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return error_response(str(error), 500)


async def _unexpected(request: Request, error: Exception) -> JSONResponse:
    return error_response("internal error; the server's log has more", 500)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return await _unexpected(request, error)
    message = f"{request.method} {request.url.path}: {error.detail}"
    headers = dict(error.headers) if error.headers else None
    return error_response(message, error.status_code, headers=headers)
