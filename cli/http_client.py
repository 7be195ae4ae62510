"""The little of an OpenAI client that the command line needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


class ServerError(Exception):
    """The server said no (`status`), or nothing (None). The message is fit to print."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def chat_events(url: str, body: dict[str, Any], *, api_key: str | None, timeout_s: float) -> Iterator[dict[str, Any]]:
    """The chunks of one streamed chat completion. Raises `ServerError`."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.stream(
            "POST", f"{url}/v1/chat/completions", json={**body, "stream": True}, headers=headers, timeout=timeout_s
        ) as response:
            if response.status_code != 200:
                response.read()
                raise ServerError(f"{response.status_code}: {_message(response)}")
            for line in response.iter_lines():
                if not line.startswith("data:"):
                    continue
                data = line[5:].strip()
                if data == "[DONE]":
                    return
                event = _json(data, url)
                if "error" in event:
                    raise ServerError(str(event["error"].get("message", event["error"])))
                yield event
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(f"{url}: {str(error) or type(error).__name__}") from error


def get_text(url: str, path: str, *, timeout_s: float = 5.0, token: str = "") -> str:
    """A GET, with `token` as bearer if there is one. Raises `ServerError`."""
    return _answered("GET", url, path, None, timeout_s, token).text


def get_json(url: str, path: str, *, timeout_s: float = 5.0, token: str = "") -> Any:
    """A GET that answers JSON. Raises `ServerError`."""
    return _json(get_text(url, path, timeout_s=timeout_s, token=token), f"{url}{path}")


def post_json(url: str, path: str, body: dict[str, Any], *, timeout_s: float, token: str = "") -> Any:
    """A POST of JSON that answers JSON, with `token` as bearer if there is one. Raises `ServerError`."""
    return _json(_answered("POST", url, path, body, timeout_s, token).text, f"{url}{path}")


def sample_of(metrics: str, name: str, labels: dict[str, str]) -> float:
    """One sample of a Prometheus text. Raises `ServerError` when it is not there."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    for line in metrics.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and all(label in head for label in wanted):
            return float(value)
    raise ServerError(f"the server has no metric {name} with {', '.join(wanted)}")


def _answered(
    method: str, url: str, path: str, body: dict[str, Any] | None, timeout_s: float, token: str = ""
) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        response = httpx.request(method, f"{url}{path}", json=body, timeout=timeout_s, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(f"{url}: {str(error) or type(error).__name__}") from error
    if not response.is_success:
        raise ServerError(f"{response.status_code}: {_message(response)}", response.status_code)
    return response


def served_models(url: str, *, api_key: str | None, timeout_s: float) -> list[str]:
    """Names of the models that the server at `url` serves. Raises `ServerError`, also when that is no such server."""
    listed = get_json(url, "/v1/models", timeout_s=timeout_s, token=api_key or "")
    try:
        return [str(model["id"]) for model in listed["data"]]
    except (KeyError, TypeError) as error:
        raise ServerError(f"{url} is not an OpenAI-compatible server: /v1/models lists no models") from error


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServerError(f"{where}: the answer is not JSON: {text[:60]!r}") from error


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:300]
