"""Headers that keep browsers from doing more with an answer than it says."""

from starlette import datastructures
from starlette import types

# The page loads its own files and asks its own server; texts that users typed
# run nothing and load nothing, wherever they may be shown.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    # JSON and metrics, in which there may be text of users, are no HTML.
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class ResponseHeaders:
    """Adds `HEADERS` to whatever an application answers.

    Args:
      app: The ASGI application.
    """

    def __init__(self, app: types.ASGIApp) -> None:
        self._app = app

    async def __call__(
        self, scope: types.Scope, receive: types.Receive, send: types.Send
    ) -> None:
        async def send_with_headers(message: types.Message) -> None:
            if message["type"] == "http.response.start":
                datastructures.MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, send_with_headers)
