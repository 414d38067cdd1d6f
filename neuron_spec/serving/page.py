"""The pages at `/` and `/docs`: static files that talk to this server's own API and to nobody
else."""

from __future__ import annotations

from typing import Any

import fastapi_offline  # only its files: Swagger UI
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    # What a model writes can never become markup: the browser refuses every way to make some.
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
_HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # asked again each time; the ETag makes that cheap
}


class _Files(StaticFiles):
    """The package's own files, with the page's headers."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """See Starlette."""
        response = super().file_response(*args, **options)
        response.headers.update(_HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    """Serve the page, its style and its scripts; no key is asked for them."""
    files = _Files(packages=[("neuron_spec.serving", "static")])

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(http: Request) -> Response:
        return await files.get_response("page.html", http.scope)

    app.mount("/static", files)


def add_docs(app: FastAPI) -> None:
    """Serve Swagger UI on the OpenAPI document, without asking any other server for its parts."""
    files = StaticFiles(packages=[(fastapi_offline.__name__, "static")])

    @app.get("/docs", include_in_schema=False)
    async def docs(http: Request) -> Response:
        prefix = http.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{prefix}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{prefix}/docs/files/swagger-ui-bundle.js",
            swagger_css_url=f"{prefix}/docs/files/swagger-ui.css",
            swagger_favicon_url=f"{prefix}/static/icon.svg",
        )

    app.mount("/docs/files", files)
