"""`send`: typed once and proved, whatever interrupted an earlier one."""

from __future__ import annotations

import json

import pytest

from fanout import prompting
from fanout import workers as life
from fanout.errors import SkillError
from fanout.workers import Sending
from world import World, wait_for

IDLE = ("--prompt-mode", "none", "--settle", "0")
SCREEN = "title\n\n> \nidle"
TYPED = "title\n\n> the text\nidle"


def kept(drawn: str | None = None, echo: tuple[int, ...] = ()) -> Sending:
    return Sending("launch", "0002", "0002", True, SCREEN, drawn, list(echo))


def test_nothing_was_typed_when_the_screen_is_as_it_was() -> None:
    assert prompting.standing(kept(), "the text", SCREEN) is False


def test_the_text_stands_when_it_is_seen_or_its_rows_are_as_they_were_drawn() -> None:
    assert prompting.standing(kept(), "the text", TYPED) is True
    folded = "title\n\n> [Pasted text #1 +9 lines]\nidle"
    assert prompting.standing(kept(folded, (2,)), "anything", folded) is True
    assert prompting.standing(kept(folded, (2,)), "anything", f"more\nof it\n{folded}") is True


def test_rows_that_changed_after_enter_mean_that_it_was_taken() -> None:
    assert prompting.standing(kept(TYPED, (2,)), "the text", "title\n\n> \nworking") is False


def test_a_screen_that_moved_on_before_enter_is_unknown() -> None:
    assert prompting.standing(kept(), "the text", "title\nsomething else\n> \nworking") is None


def test_what_stood_there_before_is_no_text_that_was_typed() -> None:
    """The same prompt again, or an answer that repeats it, beside a status row that moves."""
    before = "> go on\nok, go on\n\n> \n---\nspin 1"
    earlier = Sending("launch", "0002", "0002", True, before, None, [])
    assert prompting.standing(earlier, "go on", before.replace("spin 1", "spin 2")) is None
    assert prompting.standing(earlier, "go on", before.replace("> \n", "> go on\n", 1)) is None
    typed = before.replace("\n> \n", "\n>> go on\n")
    assert prompting.standing(earlier, "go on", typed) is True


def test_the_echo_of_a_text_above_an_empty_input_line_is_not_taken_for_it() -> None:
    before = "title\n\n> \n---\nidle"
    drawn = "title\n\n> the text\n---\nidle"
    earlier = Sending("launch", "0002", "0002", True, before, drawn, [2])
    assert prompting.standing(earlier, "the text", "title\n> the text\n> \n---\nidle") is False
    assert prompting.standing(earlier, "the text", f"more\n{drawn}") is True


def ready(world: World) -> tuple[str, life.Worker, str]:
    """A worker whose sample agent is idle: common folder, record, screen."""
    world.spawn("w1", "First.", *IDLE)
    wait_for(lambda: "idle" in world.ok("capture", "w1")["text"], "the agent is idle")
    common = str(world.repo / ".git")
    worker = life.load(common, "w1")
    _, screens = worker.server.look([worker.pane])
    return common, worker, screens[worker.pane]


def keep(
    common: str, worker: life.Worker, text: str, screen: str, drawn: str | None = None
) -> None:
    """What a send leaves that was killed on its way."""
    number = life.new_prompt(common, "w1", text)
    life.write_sending(
        common, worker, Sending(worker.launch, "0001", number, False, screen, drawn, [])
    )


def test_a_send_that_was_killed_before_it_typed_is_done_by_the_same_call(world: World) -> None:
    common, worker, screen = ready(world)
    keep(common, worker, "Hello there", screen)
    assert world.ok("send", "w1", "--prompt", "Hello there")["already_typed"] is False
    assert [entry["prompt"] for entry in world.prompts()] == ["Hello there"]
    assert life.read_sending(common, worker) is None


def test_a_send_that_was_killed_before_enter_is_only_submitted(world: World) -> None:
    common, worker, screen = ready(world)
    keep(common, worker, "Hello there", screen)
    worker.server.paste(worker.pane, b"Hello there")
    wait_for(lambda: "Hello there" in world.ok("capture", "w1")["text"], "the text is drawn")
    assert world.ok("send", "w1", "--prompt", "Hello there")["already_typed"] is True
    wait_for(world.prompts, "the agent has it")
    assert [entry["prompt"] for entry in world.prompts()] == ["Hello there"]


def test_another_text_is_refused_while_the_first_stands_in_the_input(world: World) -> None:
    """P07: the two must not be submitted as one."""
    common, worker, screen = ready(world)
    keep(common, worker, "first", screen)
    worker.server.paste(worker.pane, b"first")
    wait_for(lambda: "> first" in world.ok("capture", "w1")["text"], "the text is drawn")
    assert world.refused(3, "send", "w1", "--prompt", "second")["code"] == "input-not-empty"
    assert world.prompts() == []
    assert world.ok("send", "w1", "--prompt", "first")["already_typed"] is True
    world.ok("send", "w1", "--prompt", "second")
    assert [entry["prompt"] for entry in world.prompts()] == ["first", "second"]


def test_a_send_that_was_killed_after_enter_is_not_typed_again(world: World) -> None:
    common, worker, screen = ready(world)
    number = life.new_prompt(common, "w1", "Hello there")
    worker.server.paste(worker.pane, b"Hello there")
    wait_for(lambda: "Hello there" in world.ok("capture", "w1")["text"], "the text is drawn")
    _, screens = worker.server.look([worker.pane])
    drawn = screens[worker.pane]
    rows = [n for n, row in enumerate(drawn.split("\n")) if "Hello there" in row]
    state = Sending(worker.launch, "0001", number, False, screen, drawn, rows)
    life.write_sending(common, worker, state)
    worker.server.press(worker.pane, "Enter")
    wait_for(world.prompts, "the agent has it")
    wait_for(lambda: "Nothing to do" in world.ok("capture", "w1")["text"], "it is done")
    assert world.ok("send", "w1", "--prompt", "Hello there")["already_typed"] is True
    assert len(world.prompts()) == 1


def test_what_cannot_be_told_is_refused_and_anew_decides(world: World) -> None:
    common, worker, _ = ready(world)
    keep(common, worker, "Hello there", "quite another screen")
    error = world.refused(3, "send", "w1", "--prompt", "Hello there")
    assert error["code"] == "delivery-unknown"
    assert "--anew" in error["hint"]
    assert world.prompts() == []
    world.ok("send", "w1", "--prompt", "Hello there", "--anew")
    assert len(world.prompts()) == 1


def test_a_send_to_an_earlier_start_of_the_agent_is_forgotten(world: World) -> None:
    common, worker, _ = ready(world)
    keep(common, worker._replace(launch="earlier"), "Hello there", "another screen")
    world.ok("send", "w1", "--prompt", "Hi")
    assert len(world.prompts()) == 1


def test_while_a_job_is_open_send_steers_it_and_afterwards_opens_the_next(world: World) -> None:
    world.spawn("w1", "@report started", "--settle", "0")
    assert world.ok("send", "w1", "--prompt", "@report completed one")["job"] == "0001"
    wait_for(lambda: world.status("w1")["job"]["state"] == "completed", "the first job is done")
    assert world.ok("send", "w1", "--prompt", "next")["job"] == "0003"
    row = world.status("w1")["job"]
    assert (row["id"], row["state"]) == ("0003", "open")
    card = json.loads((world.tree("w1") / ".worker-runs" / "worker.json").read_text())
    assert card["job"] == "0003"
    sent = [e for e in world.ok("events", "w1")["events"] if e["event"] == "delivered"]
    assert [(e["job"], e["data"].get("prompt")) for e in sent][-1] == ("0003", "0003")


def test_a_prompt_that_cannot_be_typed_opens_no_job(world: World) -> None:
    world.spawn_fake("w1", "trust", "--prompt-mode", "none", "--settle", "0")
    world.wait_state("w1", "waiting")
    before = world.ok("events", "w1")["events"]
    assert world.refused(10, "send", "w1", "--prompt", "x")["code"] == "agent-asks"
    assert world.ok("events", "w1")["events"] == before


@pytest.mark.parametrize("content", [b"{}", b"", b'{"schema": 1, "launch": 3}'])
def test_a_damaged_note_of_a_send_is_named_and_nothing_typed(world: World, content: bytes) -> None:
    common, worker, _ = ready(world)
    (world.record("w1") / "sending.json").write_bytes(content)
    with pytest.raises(SkillError, match=r"sending\.json"):
        life.read_sending(common, worker)
    assert "sending.json" in world.refused(1, "send", "w1", "--prompt", "x")["message"]
    assert world.prompts() == []
    assert (world.record("w1") / "sending.json").read_bytes() == content
