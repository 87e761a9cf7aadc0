"""The stand-in model server answers each protocol, whole and as a stream, as the prompt says."""

from __future__ import annotations

import gzip
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from model_server import DONE, Asked, ModelServer, Turn, steps_left

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/stand-in:generateContent",
}
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "file_path": {}, "content": {}, "deep": {}},
    "required": ["deep"],
}
TOOLS = ("run_shell_command", "write_file")
# What a model saw before: a prompt that was played, its call and what the tool said.
EARLIER = ("MODEL: shell ls\nMODEL: say listed", "files")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as made:
        yield made


def body_of(protocol: str, prompt: str, *, tools: bool, stream: bool, earlier: bool) -> Any:
    """A request as an agent of this protocol sends it."""
    offered = TOOLS if tools else ()
    if protocol == "chat":
        call = {"id": "c", "type": "function", "function": {"name": "x", "arguments": "{}"}}
        past: list[Any] = [
            {"role": "user", "content": EARLIER[0]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": EARLIER[1]},
            {"role": "assistant", "content": "listed"},
        ]
        made = {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                *(past if earlier else []),
                {"role": "user", "content": [{"type": "text", "text": prompt}]},
            ],
            "tools": [
                {"type": "function", "function": {"name": n, "parameters": SCHEMA}} for n in offered
            ],
        }
        return made | ({"stream": True} if stream else {})
    if protocol == "responses":
        past: list[Any] = [
            {"type": "message", "role": "user", "content": EARLIER[0]},
            {"type": "function_call", "call_id": "c", "name": "x", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": EARLIER[1]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "listed"}]},
        ]
        text = [{"type": "input_text", "text": prompt}]
        return {
            "instructions": "Be brief.",
            "input": [
                *(past if earlier else []),
                {"type": "message", "role": "user", "content": text},
            ],
            "tools": [{"type": "function", "name": n, "parameters": SCHEMA} for n in offered],
            "stream": stream,
        }
    if protocol == "anthropic":
        past: list[Any] = [
            {"role": "user", "content": EARLIER[0]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "input": {}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": EARLIER[1]}],
            },
            {"role": "assistant", "content": [{"type": "text", "text": "listed"}]},
        ]
        return {
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [*(past if earlier else []), {"role": "user", "content": prompt}],
            "tools": [{"name": n, "input_schema": SCHEMA} for n in offered],
            "stream": stream,
        }
    past: list[Any] = [
        {"role": "user", "parts": [{"text": EARLIER[0]}]},
        {"role": "model", "parts": [{"functionCall": {"name": "x", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"response": {"o": EARLIER[1]}}}]},
        {"role": "model", "parts": [{"text": "listed"}]},
    ]
    declared = [{"name": n, "parametersJsonSchema": SCHEMA} for n in offered]
    return {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            *(past if earlier else []),
            {"role": "user", "parts": [{"text": prompt}]},
        ],
        "tools": [{"functionDeclarations": declared}],
    }


def ask(
    server: ModelServer,
    protocol: str,
    prompt: str,
    *,
    tools: bool = True,
    stream: bool = False,
    earlier: bool = False,
    key: str = "k",
    before: str = "",
    packed: bool = False,
) -> Any:
    """Ask, and return the JSON answer or the events of the stream."""
    body = body_of(protocol, prompt, tools=tools, stream=stream, earlier=earlier)
    path = PATHS[protocol]
    if stream and protocol == "gemini":
        path = path.replace(":generate", ":streamGenerate") + "?alt=sse"
    content = json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    if packed:
        content, headers["Content-Encoding"] = gzip.compress(content), "gzip"
    request = urllib.request.Request(server.endpoint + before + path, content, headers)
    with urllib.request.urlopen(request, timeout=20) as reply:
        text = reply.read().decode()
        if "event-stream" not in reply.headers["Content-Type"]:
            return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def meaning(protocol: str, answer: Any) -> tuple[str, Any]:
    """What an answer says: words, or the name and the arguments of a call."""
    if protocol == "chat":
        message = answer["choices"][0]["message"]
        if not message.get("tool_calls"):
            return "", message["content"]
        function = message["tool_calls"][0]["function"]
        return function["name"], json.loads(function["arguments"])
    if protocol == "responses":
        (item,) = answer["output"]
        if item["type"] == "message":
            return "", item["content"][0]["text"]
        return item["name"], json.loads(item["arguments"])
    if protocol == "anthropic":
        (block,) = answer["content"]
        return (block["name"], block["input"]) if "input" in block else ("", block["text"])
    (part,) = answer["candidates"][0]["content"]["parts"]
    call = part.get("functionCall")
    return (call["name"], call["args"]) if call else ("", part["text"])


def streamed(protocol: str, events: list[Any]) -> tuple[str, Any]:
    """What the pieces of a stream say together."""
    words, name, given = "", "", ""
    for event in events:
        if protocol == "chat" and event["choices"]:
            delta = event["choices"][0]["delta"]
            words += delta.get("content") or ""
            for call in delta.get("tool_calls", []):
                name = call["function"]["name"]
                given += call["function"]["arguments"]
        elif protocol == "responses":
            if event["type"].endswith("text.delta"):
                words += event["delta"]
            elif event["type"].endswith("arguments.delta"):
                given += event["delta"]
            elif event["type"] == "response.output_item.added":
                name = event["item"].get("name", "")
        elif protocol == "anthropic":
            delta = event.get("delta", {})
            words += delta.get("text", "")
            given += delta.get("partial_json", "")
            name = event.get("content_block", {}).get("name", name)
        elif protocol == "gemini":
            for part in event["candidates"][0]["content"]["parts"]:
                words += part.get("text", "")
                if "functionCall" in part:
                    name = part["functionCall"]["name"]
                    given += json.dumps(part["functionCall"]["args"])
    return (name, json.loads(given)) if name else ("", words)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PATHS)
def test_each_protocol_says_and_calls(server: ModelServer, protocol: str, stream: bool) -> None:
    read = streamed if stream else meaning
    assert read(protocol, ask(server, protocol, "Hello", stream=stream)) == ("", DONE)
    told = ask(server, protocol, "MODEL: say All is w~ell: \u00fc.", stream=stream)
    assert read(protocol, told) == ("", "All is well: \u00fc.")
    prompt = "Do it.\nMODEL: write a/b.txt two words\nMODEL: say never yet"
    name, given = read(protocol, ask(server, protocol, prompt, stream=stream, packed=True))
    assert name == "write_file"
    assert given == {"file_path": "a/b.txt", "content": "two words\n", "deep": "-"}
    name, given = read(protocol, ask(server, protocol, "MODEL: shell a && b", stream=stream))
    assert (name, given["command"]) == ("run_shell_command", "a && b")


@pytest.mark.parametrize("protocol", PATHS)
def test_what_was_asked_is_kept_byte_for_byte(server: ModelServer, protocol: str) -> None:
    prompt = "line one\n\n  \u00fc $HOME `x` \\n 'q' \"d\" & <b>\tend  "
    ask(server, protocol, prompt, earlier=True, stream=True, key="sesame")
    (asked,) = server.asked()
    assert asked.said() == [EARLIER[0], prompt]
    assert [turn.calls for turn in asked.turns if turn.role == "assistant"] in ([1, 0], [1, 0, 0])
    assert any(EARLIER[1] in turn.text for turn in asked.turns if turn.role == "tool")
    assert (asked.system, asked.key, asked.protocol) == ("Be brief.", "sesame", protocol)
    assert [tool.name for tool in asked.tools] == list(TOOLS)
    assert asked.stream


def test_the_steps_are_played_one_by_one(server: ModelServer) -> None:
    """The newest message with directives counts, and what was called since."""
    from model_server import Turn

    script = "MODEL: write f x\n MODEL: wait 1\nMODEL: shell y\nMODEL: say z"
    said, call, result = Turn("user", script), Turn("assistant", "", 1), Turn("tool", "ok")
    assert steps_left((said,)) == [("write", "f x")]
    assert steps_left((said, call, result)) == [("wait", "1"), ("shell", "y")]
    assert steps_left((said, call, result, call, result)) == [("say", "z")]
    assert steps_left((said, call, call, result, Turn("user", "a reminder"))) == [("say", "z")]
    assert steps_left((said, call, result, call, Turn("user", "MODEL: hang"))) == [("hang", "")]
    assert steps_left((Turn("user", "as in `MODEL: hang`"),)) == []
    unanswered = Turn("user", f"{script}\nThe last line.\nMODEL: shell ls\nMODEL: say x")
    assert steps_left((unanswered,)) == [("shell", "ls")]
    assert steps_left((unanswered, call, result)) == [("say", "x")]


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize("how", ["key", "path", "prompt"])
def test_errors_on_demand(server: ModelServer, protocol: str, how: str) -> None:
    for code in (401, 400, 500):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(
                server, protocol, f"MODEL: status {code}" if how == "prompt" else "Hello",
                key=f"key!{code}" if how == "key" else "k",
                before=f"/!{code}" if how == "path" else "",
            )  # fmt: skip
        assert caught.value.code == code
        assert str(code) in json.load(caught.value)["error"]["message"]
    assert [asked.effect for asked in server.asked()] == (
        ["", "", ""] if how == "prompt" else ["401", "400", "500"]
    )


def test_slowness_on_demand(server: ModelServer) -> None:
    cases: list[dict[str, Any]] = [{"key": "k!wait-0.2"}, {"before": "/!wait-0.2"}, {}]
    for given in cases:
        begun = time.monotonic()
        prompt = "Hello" if given else "MODEL: wait 0.2\nMODEL: say x"
        ask(server, "chat", prompt, **given)
        assert 0.2 <= time.monotonic() - begun < 10


def test_a_hang_ends_with_the_server() -> None:
    ended: list[BaseException | None] = []

    def hang(prompt: str, key: str) -> None:
        try:
            ask(server, "anthropic", prompt, key=key)
            ended.append(None)
        except OSError as error:
            ended.append(error)

    with ModelServer() as server:
        cases = [("MODEL: hang", "k"), ("Hello", "k!hang")]
        threads = [threading.Thread(target=hang, args=case) for case in cases]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(server.asked()) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert ended == []
    for thread in threads:
        thread.join(10)
    assert len(ended) == 2


@pytest.mark.parametrize("protocol", PATHS)
def test_a_question_beside_the_conversation(server: ModelServer, protocol: str) -> None:
    """Agents ask for titles without tools, with the prompt in it: nothing of it is played."""
    told = ask(server, protocol, "Give a title to: MODEL: write a b\nMODEL: shell c", tools=False)
    assert meaning(protocol, told) == ("", "A title")


def test_an_answer_in_the_form_that_is_wanted() -> None:
    from model_server import Say, answer_to

    schema = {
        "properties": {"next": {"enum": ["user", "model"]}, "why": {"type": "string"},
                       "sure": {"type": "boolean"}, "more": {"type": "object"}},
        "required": ["next", "why", "sure", "more"],
    }  # fmt: skip
    asked = Asked(0, "", "gemini", "", "", (), (), False, schema, "")
    answer = answer_to(asked, threading.Event())
    assert isinstance(answer, Say)
    assert json.loads(answer.text) == {"next": "user", "why": "-", "sure": False, "more": {}}


def test_each_form_of_a_shell_tool() -> None:
    from model_server import shell_call, tool_of

    custom = shell_call(tool_of("exec", "custom", None), "echo \"a\" 'b'", beyond=True)
    assert custom.kind == "custom"
    assert 'cmd: "echo \\"a\\" \'b\'"' in custom.arguments
    assert "require_escalated" in custom.arguments
    listed = {"properties": {"command": {"type": "array"}}, "required": ["command"]}
    assert shell_call(tool_of("shell", "function", listed), "x", beyond=False).arguments == {
        "command": ["bash", "-lc", "x"]
    }
    own = shell_call(tool_of("local_shell", "local_shell", None), "x", beyond=False)
    assert own.arguments["command"] == ["bash", "-lc", "x"]


def test_a_file_is_written_where_the_agent_works() -> None:
    """Some tools take nothing but an absolute path."""
    from model_server import Call, Turn, answer_to, tool_of

    writer = tool_of("Write", "function", {"properties": {"file_path": {}, "content": {}}})
    turns = (Turn("user", "<cwd>/some where/tree</cwd>"), Turn("user", "MODEL: write a.txt x"))
    asked = Asked(0, "", "responses", "", "", turns, (writer,), False, None, "")
    answer = answer_to(asked, threading.Event())
    assert isinstance(answer, Call)
    assert answer.arguments == {"file_path": "/some where/tree/a.txt", "content": "x\n"}


def test_other_paths(server: ModelServer) -> None:
    with urllib.request.urlopen(server.endpoint + "/v1/models", timeout=20) as reply:
        assert json.load(reply)["data"][0]["id"] == "stand-in"
    for path in ("/v1/nothing", "/v1/chat"):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(server.endpoint + path, b"{}", timeout=20)


def test_the_plain_words_of_a_live_check() -> None:
    first = (
        "Remember the word cedar1.\nAnswer with one word alone: a1 and b1, joined by a plus sign."
    )
    again = "Answer with one word alone: the word to be remembered and b2, joined by a plus sign."
    command = "Run this command with your shell tool, then stop: touch x && ls"

    def left(*texts: str) -> list[tuple[str, str]]:
        return steps_left(tuple(Turn("user", text) for text in texts))

    assert left(first) == [("say", "a1+b1")]
    assert left(first, again) == left(f"{first}\n{again}") == [("say", "cedar1+b2")]
    assert left(again) == [("say", "nothing+b2")]
    assert left(command) == [("shell", "touch x && ls")]
