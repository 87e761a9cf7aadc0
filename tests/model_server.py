#!/usr/bin/env python3
"""A stand-in for the services behind agent CLIs, on 127.0.0.1 alone: model_server.py [--log FILE].

It speaks OpenAI chat completions and responses, Anthropic messages and Gemini generateContent, each
whole or as a stream. What it answers stands in the prompt: the newest user message that holds lines
beginning with `MODEL:` is played step by step, each by a call of a tool that the agent offers.

    MODEL: write PATH TEXT    the agent's own tool writes a file (without one, its shell does)
    MODEL: shell COMMAND      the agent's shell tool runs it
    MODEL: beyond COMMAND     the same, asking to leave the agent's sandbox
    MODEL: wait SECONDS       the answer takes so long
    MODEL: say TEXT           the last words, without each tilde: so they differ from the prompt's
    MODEL: status CODE        this HTTP error
    MODEL: hang               no answer

A prompt without such a line is answered with words alone. What `convert_harness.py --check --live`
asks for in plain words is understood too (see `PLAIN`). An API key that ends in `!CODE`, `!hang`
or `!wait-SECONDS`, or a path that begins with `/!CODE/` and so on, has that effect on each request.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

DONE = "MODEL-DONE"
STEP = re.compile(r"^[ \t]*MODEL: (write|shell|beyond|wait|say|status|hang)\b[ \t]*(.*)$", re.M)
# The plain words of a live check: two words to be joined, one to be remembered, a command.
PLAIN = re.compile(
    r"^Answer with one word alone: (?P<first>[\w ]+) and (?P<second>\w+), "
    r"joined by a plus sign\.[ \t]*$"
    r"|^Run this command with your shell tool, then stop: (?P<command>.+?)[ \t]*$",
    re.M,
)
REMEMBER = re.compile(r"^Remember the word (\w+)\.[ \t]*$", re.M)
REMEMBERED = "the word to be remembered"
CALLS = ("write", "shell", "beyond")
SHELLS = (
    "exec_command", "shell_command", "run_shell_command", "bash", "shell", "local_shell", "exec",
)  # fmt: skip
WRITERS = ("write_file", "write", "writefile")
FAULT = r"(?:\d{3}|hang|wait-[\d.]+)"
# A hang ends with the server, or after so long.
HANG = 600.0
# Where agents say in which folder they work, for tools that demand an absolute path.
FOLDERS = (
    r"<cwd>([^<\n]+)</cwd>",
    r"(?i)working directory(?: is)?:? *`?(/[^\s`<\"]+)",
    r"(?i)working in the directory: *`?(/[^\s`<\"]+)",
    r"(?i)workspace[^/\n]{0,60}(/[^\s`<\"]+)",
)
USAGE = (100, 10)

Json = dict[str, Any]


class Turn(NamedTuple):
    """One part of a conversation: who spoke, what, and how many tools were called."""

    role: str
    text: str
    calls: int = 0


class Tool(NamedTuple):
    """A tool that an agent offers."""

    name: str
    kind: str
    properties: Json
    required: list[str]


class Asked(NamedTuple):
    """A request, whatever its protocol. `at` is a time in seconds, `effect` a fault that it met."""

    at: float
    path: str
    protocol: str
    key: str
    system: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    stream: bool
    schema: Json | None
    effect: str

    def said(self) -> list[str]:
        """What users said, in order."""
        return [turn.text for turn in self.turns if turn.role == "user"]

    def whole(self) -> str:
        """All that the request says."""
        return "\n".join([self.system, *(turn.text for turn in self.turns)])


class Say(NamedTuple):
    """An answer in words."""

    text: str


class Call(NamedTuple):
    """An answer that calls a tool; `arguments` is a text for a tool of the kind `custom`."""

    name: str
    arguments: Any
    kind: str = "function"


class FaultError(Exception):
    """The answer is this HTTP error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"HTTP {code}")
        self.code = code


# --- What was asked -----------------------------------------------------------------------


def text_of(content: Any) -> str:
    """The words of a message's content, in whichever form the protocol has it."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts: list[Any] = content  # pyright: ignore[reportUnknownVariableType]
        return "\n".join(text for part in parts if (text := text_of(part)))
    if isinstance(content, dict):
        fields: Json = content  # pyright: ignore[reportUnknownVariableType]
        return next((text_of(fields[k]) for k in ("text", "content", "output") if k in fields), "")
    return ""


def table(value: Any) -> Json:
    """A JSON object; empty where there is none."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def rows(value: Any) -> list[Json]:
    """A list of JSON objects; empty where there is none."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def tool_of(name: str, kind: str, schema: Any) -> Tool:
    """A tool with the parameters of its JSON schema."""
    known = table(schema)
    return Tool(name, kind, table(known.get("properties")), known.get("required") or [])


def read_chat(body: Json) -> tuple[str, list[Turn], list[Tool]]:
    """System text, turns and tools of an OpenAI chat completion."""
    system, turns = "", list[Turn]()
    for message in rows(body.get("messages")):
        role, text = str(message.get("role")), text_of(message.get("content"))
        if role in ("system", "developer"):
            system += text
        else:
            turns.append(Turn(role, text, len(message.get("tool_calls") or [])))
    offered = [table(tool.get("function", tool)) for tool in rows(body.get("tools"))]
    tools = [tool_of(row["name"], "function", row.get("parameters")) for row in offered]
    return system, turns, tools


def read_responses(body: Json) -> tuple[str, list[Turn], list[Tool]]:
    """System text, turns and tools of an OpenAI response."""
    system, turns = body.get("instructions") or "", list[Turn]()
    given = body.get("input", [])
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind.endswith("_call"):
            turns.append(Turn("assistant", "", 1))
        elif kind.endswith("_call_output"):
            turns.append(Turn("tool", text_of(item.get("output"))))
        elif kind == "message" and item.get("role") in ("system", "developer"):
            system += text_of(item.get("content"))
        elif kind == "message":
            turns.append(Turn(item["role"], text_of(item.get("content"))))
    tools = [
        tool_of(tool.get("name") or tool["type"], tool["type"], tool.get("parameters"))
        for tool in rows(body.get("tools"))
    ]
    return system, turns, tools


def read_anthropic(body: Json) -> tuple[str, list[Turn], list[Tool]]:
    """System text, turns and tools of an Anthropic message."""
    turns: list[Turn] = []
    for message in rows(body.get("messages")):
        content = message.get("content") or ""
        blocks = rows(content) or [{"type": "text", "text": content}]
        words = text_of([block for block in blocks if block["type"] == "text"])
        results = [block for block in blocks if block["type"] == "tool_result"]
        if message["role"] == "assistant":
            calls = sum(block["type"] == "tool_use" for block in blocks)
            turns.append(Turn("assistant", words, calls))
            continue
        if results:
            turns.append(Turn("tool", text_of(results)))
        if words:
            turns.append(Turn("user", words))
    offered = [row for row in rows(body.get("tools")) if "input_schema" in row]
    tools = [tool_of(row["name"], "function", row["input_schema"]) for row in offered]
    return text_of(body.get("system")), turns, tools


def read_gemini(body: Json) -> tuple[str, list[Turn], list[Tool]]:
    """System text, turns and tools of a Gemini generateContent."""
    turns: list[Turn] = []
    for content in rows(body.get("contents")):
        parts = rows(content.get("parts"))
        words = text_of([part for part in parts if "text" in part])
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        if content.get("role") == "model":
            calls = sum("functionCall" in part for part in parts)
            turns.append(Turn("assistant", words, calls))
            continue
        if results:
            turns.append(Turn("tool", json.dumps([row.get("response") for row in results])))
        if words:
            turns.append(Turn("user", words))
    offered = [
        row for tool in rows(body.get("tools")) for row in rows(tool.get("functionDeclarations"))
    ]
    tools = [
        tool_of(row["name"], "function", row.get("parametersJsonSchema") or row.get("parameters"))
        for row in offered
    ]
    return text_of(table(body.get("systemInstruction")).get("parts")), turns, tools


READERS = {
    "chat": read_chat,
    "responses": read_responses,
    "anthropic": read_anthropic,
    "gemini": read_gemini,
}


def protocol_of(path: str) -> str | None:
    """The protocol of a path, or None."""
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/messages"):
        return "anthropic"
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return "gemini"
    return None


def schema_of(body: Json) -> Json | None:
    """The JSON schema that an answer in words must fit, or None."""
    settings = table(body.get("generationConfig"))
    if settings.get("responseMimeType") == "application/json":
        return table(settings.get("responseJsonSchema") or settings.get("responseSchema"))
    wanted = table(body.get("response_format") or table(body.get("text")).get("format"))
    if wanted.get("type") == "json_schema":
        return table(table(wanted.get("json_schema") or wanted).get("schema"))
    return {} if wanted.get("type") == "json_object" else None


# --- What is answered ---------------------------------------------------------------------


def steps_in(turns: tuple[Turn, ...], number: int) -> list[tuple[str, str]]:
    """The steps that one message asks for, by directives or in plain words.

    Some agents put a prompt that has no answer yet before the next one, in one message: then the
    last lines of directives that stand together count.
    """
    text = turns[number].text
    found: list[tuple[str, str]] = []
    end = -1
    for step in STEP.finditer(text):
        if step.start() != end + 1:
            found.clear()
        found.append((step[1], step[2]))
        end = step.end()
    asked = list(PLAIN.finditer(text))
    if found or not asked:
        return found
    plain = asked[-1]
    if plain["command"]:
        return [("shell", plain["command"])]
    first = plain["first"]
    if first == REMEMBERED:
        told = [word for turn in turns[: number + 1] for word in REMEMBER.findall(turn.text)]
        first = told[-1] if told else "nothing"
    return [("say", f"{first}+{plain['second']}")]


def steps_left(turns: tuple[Turn, ...]) -> list[tuple[str, str]]:
    """What is to be played of the newest message with directives, as far as one answer goes."""
    for number in range(len(turns) - 1, -1, -1):
        found = steps_in(turns, number) if turns[number].role == "user" else []
        if found:
            made = sum(turn.calls for turn in turns[number + 1 :])
            break
    else:
        return []
    left: list[tuple[str, str]] = []
    for kind, words in found:
        if kind in CALLS and made > 0:
            # A wait before a call was part of that call's answer.
            made, left = made - 1, []
            continue
        left.append((kind, words.strip()))
        if kind != "wait":
            break
    return left


def tool_named(tools: tuple[Tool, ...], names: tuple[str, ...]) -> Tool | None:
    """The first of these tools that the agent offers."""
    known = {tool.name.lower(): tool for tool in tools}
    return next((known[name] for name in names if name in known), None)


def filled(properties: Json, required: list[str], given: Json) -> Json:
    """Arguments that fit a schema: those given that it knows, and something for the rest."""
    made = {name: value for name, value in given.items() if not properties or name in properties}
    for name in required:
        made.setdefault(name, something(table(properties.get(name))))
    return made


def something(schema: Json) -> Any:
    """The plainest value that fits a schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    # One type, or a list of them.
    word = re.sub(r"\W", " ", str(schema.get("type", "string"))).split()[0].lower()
    if word == "object":
        return filled(table(schema.get("properties")), schema.get("required") or [], {})
    plain: Json = {"boolean": False, "integer": 1, "number": 1, "array": []}
    return plain.get(word, "-")


def shell_call(tool: Tool, command: str, *, beyond: bool) -> Call:
    """The call of a shell tool, in the form that it takes."""
    if tool.kind == "custom":
        more = ', sandbox_permissions: "require_escalated", justification: "asked"'
        script = f"cmd: {json.dumps(command)}{more if beyond else ''}"
        return Call(tool.name, f"text(await tools.exec_command({{{script}}}));", "custom")
    if tool.kind == "local_shell":
        action: Json = {"type": "exec", "command": ["bash", "-lc", command], "env": {}}
        return Call(tool.name, action, "local_shell")
    name = next((name for name in ("command", "cmd") if name in tool.properties), "command")
    takes = table(tool.properties.get(name)).get("type")
    words: Any = ["bash", "-lc", command] if takes == "array" else command
    given: Json = {name: words, "description": "a step"}
    if beyond:
        given |= {"sandbox_permissions": "require_escalated", "justification": "asked"}
    return Call(tool.name, filled(tool.properties, tool.required, given))


def write_call(tool: Tool, path: str, text: str, folder: str) -> Call:
    """The call of a tool that writes a file."""
    whole = path if path.startswith("/") or not folder else f"{folder.rstrip('/')}/{path}"
    paths = dict.fromkeys(("file_path", "filePath", "path", "absolute_path"), whole)
    texts = dict.fromkeys(("content", "contents", "file_text", "text"), text + "\n")
    known = {name: value for name, value in (paths | texts).items() if name in tool.properties}
    return Call(tool.name, filled(tool.properties, tool.required, known))


def folder_of(asked: Asked) -> str:
    """The folder that the agent says it works in; empty if it does not say."""
    for pattern in FOLDERS:
        for text in (asked.system, *(turn.text for turn in asked.turns)):
            found = re.search(pattern, text)
            if found:
                return found[1].rstrip(".,")
    return ""


def answer_to(asked: Asked, closing: threading.Event) -> Say | Call:
    """What the model answers. Raises FaultError."""
    if not asked.tools:
        # A title, a summary or a decision that the agent wants beside the conversation.
        if asked.schema is not None:
            return Say(json.dumps(something({**asked.schema, "type": "object"})))
        if not any(kind in ("status", "hang") for kind, _ in steps_left(asked.turns)):
            return Say("A title")
    for kind, words in steps_left(asked.turns):
        if kind == "wait":
            closing.wait(min(float(words), HANG))
        elif kind == "hang":
            closing.wait(HANG)
        elif kind == "status":
            raise FaultError(int(words))
        elif kind == "say":
            return Say(words.replace("~", ""))
        else:
            return call_for(kind, words, asked)
    return Say(DONE)


def call_for(kind: str, words: str, asked: Asked) -> Say | Call:
    """The call that a step stands for; words that name the tools when none of them can do it."""
    shell = tool_named(asked.tools, SHELLS)
    path, _, text = words.partition(" ")
    if kind == "write":
        writer = tool_named(asked.tools, WRITERS)
        if writer is not None:
            return write_call(writer, path, text, folder_of(asked))
        quoted = text.replace("'", "'\\''")
        words = f"printf '%s\\n' '{quoted}' > {path}"
    if shell is None:
        return Say("NO-TOOL among " + " ".join(tool.name for tool in asked.tools))
    return shell_call(shell, words, beyond=kind == "beyond")


# --- How it is said -----------------------------------------------------------------------


def halves(text: str) -> list[str]:
    """A text in two pieces, as a stream brings it."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece] or [""]


def say_chat(answer: Say | Call, name: str, model: str) -> tuple[Json, list[Any]]:
    """An OpenAI chat completion: whole, and as the events of a stream."""
    spent = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    base = {"id": f"chatcmpl-{name}", "created": int(time.time()), "model": model}
    if isinstance(answer, Say):
        message: Json = {"role": "assistant", "content": answer.text}
        pieces: list[Json] = [{"content": piece} for piece in halves(answer.text)]
        why = "stop"
    else:
        function = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
        call = {"id": f"call_{name}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        pieces = [{"tool_calls": [{"index": 0, **call}]}]
        why = "tool_calls"
    kind = "chat.completion"
    choice = {"index": 0, "message": message, "finish_reason": why}
    whole = {**base, "object": kind, "choices": [choice], "usage": spent}

    def chunk(delta: Json, end: str | None = None) -> Json:
        part = {"index": 0, "delta": delta, "finish_reason": end}
        return {**base, "object": f"{kind}.chunk", "choices": [part]}

    last: Json = {**base, "object": f"{kind}.chunk", "choices": [], "usage": spent}
    first = [chunk({"role": "assistant", **pieces[0]}), *map(chunk, pieces[1:])]
    return whole, [*first, chunk({}, why), last, "[DONE]"]


def item_of(answer: Say | Call, name: str) -> Json:
    """What an OpenAI response holds."""
    if isinstance(answer, Say):
        content: list[Json] = [{"type": "output_text", "text": answer.text, "annotations": []}]
        return {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": content}
    call = {"id": f"item_{name}", "call_id": f"call_{name}"}
    if answer.kind == "custom":
        return {"type": "custom_tool_call", **call, "name": answer.name, "input": answer.arguments}
    if answer.kind == "local_shell":
        return {"type": "local_shell_call", **call, "action": answer.arguments}
    given = {"name": answer.name, "arguments": json.dumps(answer.arguments)}
    return {"type": "function_call", **call, **given}


def say_responses(answer: Say | Call, name: str, model: str) -> tuple[Json, list[Any]]:
    """An OpenAI response: whole, and as the events of a stream."""
    item = {**item_of(answer, name), "status": "completed"}
    base: Json = {"id": f"resp_{name}", "object": "response", "created_at": int(time.time()),
            "model": model, "error": None, "tools": [], "tool_choice": "auto"}  # fmt: skip
    spent = {
        "input_tokens": USAGE[0], "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": USAGE[1], "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sum(USAGE),
    }  # fmt: skip
    whole = {**base, "status": "completed", "output": [item], "usage": spent}
    place: Json = {"output_index": 0, "item_id": item["id"]}
    begun = {**item, "status": "in_progress"}
    middle: list[Json] = []
    if isinstance(answer, Say):
        begun["content"] = []
        part = {"content_index": 0, **place}
        empty: Json = {"type": "output_text", "text": "", "annotations": []}
        middle = [
            {"type": "response.content_part.added", **part, "part": empty},
            *(
                {"type": "response.output_text.delta", **part, "delta": x}
                for x in halves(answer.text)
            ),
            {"type": "response.output_text.done", **part, "text": answer.text},
            {"type": "response.content_part.done", **part, "part": item["content"][0]},
        ]
    elif "arguments" in item:
        begun["arguments"] = ""
        kind = "response.function_call_arguments"
        middle = [
            {"type": f"{kind}.delta", **place, "delta": item["arguments"]},
            {"type": f"{kind}.done", **place, "arguments": item["arguments"]},
        ]
    started: Json = {**base, "status": "in_progress", "output": []}
    events: list[Json] = [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": begun},
        *middle,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [{**event, "sequence_number": n} for n, event in enumerate(events)]


def say_anthropic(answer: Say | Call, name: str, model: str) -> tuple[Json, list[Any]]:
    """An Anthropic message: whole, and as the events of a stream."""
    spent = {"input_tokens": USAGE[0], "output_tokens": USAGE[1],
             "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}  # fmt: skip
    base = {"id": f"msg_{name}", "type": "message", "role": "assistant", "model": model}
    if isinstance(answer, Say):
        block: Json = {"type": "text", "text": answer.text}
        begun, why = {**block, "text": ""}, "end_turn"
        deltas = [{"type": "text_delta", "text": piece} for piece in halves(answer.text)]
    else:
        block = {"type": "tool_use", "id": f"toolu_{name}", "name": answer.name}
        begun, why = table({**block, "input": {}}), "tool_use"
        block["input"] = answer.arguments
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}]
    end = {"stop_reason": why, "stop_sequence": None}
    whole = {**base, "content": [block], **end, "usage": spent}
    blank: Json = {
        **base,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": spent,
    }
    events: list[Json] = [
        {"type": "message_start", "message": blank},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": spent},
        {"type": "message_stop"},
    ]
    return whole, events


def say_gemini(answer: Say | Call, name: str, model: str) -> tuple[Json, list[Any]]:
    """A Gemini answer: whole, and as the events of a stream."""
    if isinstance(answer, Say):
        parts: list[Json] = [{"text": piece} for piece in halves(answer.text)]
        full: list[Json] = [{"text": answer.text}]
    else:
        parts = full = [{"functionCall": {"name": answer.name, "args": answer.arguments}}]
    counts = {"promptTokenCount": USAGE[0], "candidatesTokenCount": USAGE[1],
              "totalTokenCount": sum(USAGE)}  # fmt: skip

    def made(pieces: list[Json], end: Json) -> Json:
        candidate = {"content": {"role": "model", "parts": pieces}, "index": 0, **end}
        about = {"modelVersion": model, "responseId": name, "usageMetadata": counts}
        return {"candidates": [candidate], **about}

    stop = {"finishReason": "STOP"}
    return made(full, stop), [*(made([p], {}) for p in parts[:-1]), made(parts[-1:], stop)]


WORDS = {
    "chat": say_chat,
    "responses": say_responses,
    "anthropic": say_anthropic,
    "gemini": say_gemini,
}
NAMED_EVENTS = ("responses", "anthropic")


def error_of(code: int, protocol: str) -> Json:
    """The body of an HTTP error."""
    kinds = {401: "authentication_error", 400: "invalid_request_error", 429: "rate_limit_error"}
    kind, message = kinds.get(code, "api_error"), f"stand-in error {code}"
    if protocol == "gemini":
        status = {401: "UNAUTHENTICATED", 400: "INVALID_ARGUMENT"}.get(code, "INTERNAL")
        return {"error": {"code": code, "message": message, "status": status}}
    return {"type": "error", "error": {"type": kind, "message": message, "code": kind}}


# --- The server ---------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """One connection of an agent."""

    protocol_version = "HTTP/1.1"
    model: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """The requests are kept in `asked`; nothing is printed."""

    def body(self) -> bytes:
        """What was sent, however it was packed."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            content = b"".join(self.chunks())
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        packed = self.headers.get("Content-Encoding", "") == "gzip"
        return gzip.decompress(content) if packed else content

    def chunks(self) -> Iterator[bytes]:
        """The pieces of a body whose length was not known."""
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def reply(self, value: Any, code: int = 200) -> None:
        """Answer with JSON."""
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def stream(self, events: list[Any], *, named: bool) -> None:
        """Answer with server-sent events."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            text: str = event if isinstance(event, str) else json.dumps(event)
            head = f"event: {table(event)['type']}\n" if named else ""
            self.wfile.write(f"{head}data: {text}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def key(self) -> str:
        """The API key of the request."""
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        given = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        found = re.search(r"[?&]key=([^&]+)", self.path)
        return bearer or given or (found[1] if found else "")

    def do_HEAD(self) -> None:
        """Say that there is a server."""
        self.reply({})

    def do_GET(self) -> None:
        """Name the one model there is."""
        if not self.path.partition("?")[0].endswith("/models"):
            return self.reply({"error": {"message": "no such path"}}, 404)
        model = {"id": "stand-in", "object": "model", "type": "model", "owned_by": "tests",
                 "created": 0, "display_name": "stand-in", "context_length": 200_000}  # fmt: skip
        return self.reply({"object": "list", "data": [model], "has_more": False})

    def do_POST(self) -> None:
        """Answer as the prompt says, and keep what was asked."""
        content = self.body()
        path, _, query = self.path.partition("?")
        key = self.key()
        found = re.match(rf"/!({FAULT})(/.*)", path)
        faults = [found[1]] if found else []
        if found:
            path = found[2]
        faults += re.findall(rf"!({FAULT})$", key)
        if path.endswith("/count_tokens"):
            return self.reply({"input_tokens": USAGE[0]})
        if path.endswith(":countTokens"):
            return self.reply({"totalTokens": USAGE[0]})
        protocol = protocol_of(path)
        if protocol is None:
            return self.reply({"error": {"message": "no such path"}}, 404)
        asked = self.asked(json.loads(content), path, protocol, key, faults)
        self.model.keep(asked)
        try:
            self.effects(faults)
            answer = answer_to(asked, self.model.closing)
        except FaultError as fault:
            return self.reply(error_of(fault.code, protocol), fault.code)
        self.model.number += 1
        whole, events = WORDS[protocol](answer, f"{self.model.number:08d}", "stand-in")
        try:
            if not asked.stream:
                self.reply(whole)
            elif protocol == "gemini" and "alt=sse" not in query:
                self.reply(events)
            else:
                self.stream(events, named=protocol in NAMED_EVENTS)
        except ConnectionError:
            self.close_connection = True

    def asked(self, body: Json, path: str, protocol: str, key: str, faults: list[str]) -> Asked:
        """The request, whatever its protocol."""
        system, turns, tools = READERS[protocol](body)
        stream = bool(body.get("stream")) or path.endswith(":streamGenerateContent")
        return Asked(
            time.time(), path, protocol, key, system, tuple(turns), tuple(tools), stream,
            schema_of(body), " ".join(faults),
        )  # fmt: skip

    def effects(self, faults: list[str]) -> None:
        """Do what a path or a key asks for. Raises FaultError."""
        for fault in faults:
            if fault.isdecimal():
                raise FaultError(int(fault))
            seconds = HANG if fault == "hang" else float(fault.removeprefix("wait-"))
            self.model.closing.wait(min(seconds, HANG))


class Http(ThreadingHTTPServer):
    """The connections; an agent that was ended may leave a torn one."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of a fault of our own."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class ModelServer:
    """The server, with what it was asked; a context in which it answers."""

    def __init__(self, port: int = 0, log: str | None = None) -> None:
        bound = type("BoundHandler", (Handler,), {"model": self})
        self.http = Http(("127.0.0.1", port), bound)
        self.closing = threading.Event()
        self.number = 0
        self.log = log
        self.lock = threading.Lock()
        self.requests: list[Asked] = []

    @property
    def endpoint(self) -> str:
        """Where it answers, without a path."""
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def keep(self, asked: Asked) -> None:
        """Keep a request."""
        with self.lock:
            self.requests.append(asked)
            if self.log is not None:
                with open(self.log, "a", encoding="utf-8") as file:
                    file.write(json.dumps(asked._replace(tools=())._asdict()) + "\n")

    def asked(self) -> list[Asked]:
        """The requests so far, in order."""
        with self.lock:
            return list(self.requests)

    def __enter__(self) -> ModelServer:
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()


def main() -> None:
    """Answer until interrupted."""
    parser = argparse.ArgumentParser(description="A stand-in model server on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", help="append each request to this file, one JSON object a line")
    given = parser.parse_args()
    server = ModelServer(given.port, given.log)
    print(server.endpoint, flush=True)
    try:
        server.http.serve_forever()
    except KeyboardInterrupt:
        server.http.server_close()


if __name__ == "__main__":
    main()
