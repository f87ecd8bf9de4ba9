"""The Model Context Protocol over standard input and output: one JSON-RPC message per line.

Only what a server of tools needs: `initialize`, `ping`, `tools/list` and `tools/call`. Whatever arrives, the
server answers or ignores it and goes on; only the end of its input ends it.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from sparring.errors import SparringError

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions of the protocol that differ in nothing used here, newest first."""
LONGEST_LINE = 1 << 20
PARSE, REQUEST, METHOD, PARAMS = -32700, -32600, -32601, -32602
TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "array": (list,)}


class Tool(NamedTuple):
    """Something that a client may call: arguments are checked against the schema before `call` sees them."""

    name: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]
    call: Callable[..., str]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": {name: dict(schema) for name, schema in self.properties.items()},
                "required": list(self.required),
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }


class Fault(Exception):
    """A message that cannot be answered, with JSON-RPC's number for why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Server:
    """Answers messages about a set of tools; it has no state but them."""

    def __init__(self, name: str, version: str, instructions: str, tools: list[Tool]) -> None:
        self.info = {"name": name, "version": version}
        self.instructions = instructions
        self.tools = {tool.name: tool for tool in tools}

    def serve(self, source: BinaryIO, sink: BinaryIO) -> None:
        """Answers line by line until the input ends."""
        while line := source.readline(LONGEST_LINE + 1):
            whole = line.endswith(b"\n") or len(line) <= LONGEST_LINE
            while not line.endswith(b"\n") and (line := source.readline(LONGEST_LINE)):
                pass  # the rest of a line that is too long
            answer = (
                self.answer(line) if whole else _failure(None, Fault(REQUEST, "The message is too long."))
            )
            if answer is not None:
                sink.write(json.dumps(answer).encode("ascii") + b"\n")
                sink.flush()

    def answer(self, line: bytes) -> dict[str, Any] | None:
        """The answer to one message; None for a notification or an empty line."""
        if not line.strip():
            return None
        number: Any = None
        try:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise Fault(PARSE, "The message is not valid JSON.") from error
            if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                raise Fault(REQUEST, "A message is one JSON-RPC 2.0 object.")
            if "method" not in message:
                return None  # an answer to a question that was never asked
            number = message.get("id")
            if isinstance(number, bool) or not isinstance(number, (str, int, type(None))):
                number = None
                raise Fault(REQUEST, "An id is a string or a whole number.")
            params = message.get("params", {})
            if "id" not in message:
                return None
            if not isinstance(message["method"], str) or not isinstance(params, dict):
                raise Fault(REQUEST, "A method is a string, and its params are an object.")
            return {"jsonrpc": "2.0", "id": number, "result": self._result(message["method"], params)}
        except Fault as fault:
            return _failure(number, fault)

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "initialize":
                asked = params.get("protocolVersion")
                return {
                    "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": self.info,
                    "instructions": self.instructions,
                }
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [tool.as_json() for tool in self.tools.values()]}
            case "tools/call":
                return self._call(params.get("name"), params.get("arguments") or {})
        raise Fault(METHOD, f"There is no method {_plain(method)!r} here.")

    def _call(self, name: Any, arguments: Any) -> dict[str, Any]:
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise Fault(PARAMS, f"There is no tool {_plain(name)!r}. Known: {', '.join(self.tools)}.")
        try:
            check(tool, arguments)
            return _content(tool.call(**arguments))
        except SparringError as error:
            return _content(_plain(str(error), 600), failed=True)
        except Exception as error:  # noqa: BLE001  (one bad run must not end the server)
            traceback.print_exc(file=sys.stderr)
            return _content(f"The tool failed: {type(error).__name__}.", failed=True)


def check(tool: Tool, arguments: Any) -> None:
    """Raises when arguments do not fit a tool's schema."""
    if not isinstance(arguments, dict):
        raise SparringError("Arguments are an object.")
    for name in tool.required:
        if name not in arguments:
            raise SparringError(f"{tool.name} needs the argument {name!r}.")
    for name, value in arguments.items():
        if name not in tool.properties:
            known = ", ".join(tool.properties)
            raise SparringError(f"{tool.name} has no argument {_plain(name)!r}. Known: {known}.")
        _check_value(name, value, tool.properties[name])


def _check_value(name: str, value: Any, schema: Mapping[str, Any]) -> None:
    if not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool):
        raise SparringError(f"{name} must be of type {schema['type']}.")
    if "enum" in schema and value not in schema["enum"]:
        raise SparringError(f"{name} must be one of {', '.join(schema['enum'])}.")
    if isinstance(value, str) and len(value) > schema["maxLength"]:
        raise SparringError(f"{name} may have at most {schema['maxLength']} characters.")
    if isinstance(value, int) and not schema["minimum"] <= value <= schema["maximum"]:
        raise SparringError(f"{name} must be between {schema['minimum']} and {schema['maximum']}.")
    if isinstance(value, list):
        if not schema["minItems"] <= len(value) <= schema["maxItems"]:
            raise SparringError(f"{name} takes {schema['minItems']} to {schema['maxItems']} entries.")
        for part in value:
            _check_value(name, part, schema["items"])


def _content(text: str, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def _failure(number: Any, fault: Fault) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": fault.code, "message": str(fault)}}


def _plain(text: Any, limit: int = 80) -> str:
    """A foreign text on one line, without what could look like markup."""
    return re.sub(r"[^ -~]|[<>`\\]", "?", str(text))[:limit]
