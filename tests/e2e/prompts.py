"""Prompts for the real model: a built-in set, or the questions of a file in the format of MT-Bench."""

from __future__ import annotations

import json
from pathlib import Path

from citybus import ChatMessage

SUBJECTS = (
    *("the moon", "a bus driver", "bread", "the colour blue", "bees", "an old lighthouse", "snow", "a violin"),
    *("the number seven", "rivers", "a chess game", "coffee", "sleep", "volcanoes", "a lost key", "spring"),
)
FORMS = (
    "Explain {} to a child in two sentences.",
    "Write a short poem about {}.",
    "List three facts about {}, each in its own line, and say which of them surprises people most.",
    "I like {}. What else could I like?",
)
ROLE = "You answer briefly, in plain words, and you never make anything up."


def built_in() -> list[list[ChatMessage]]:
    """64 conversations; every second one begins with the same system message."""
    questions = [form.format(subject) for subject in SUBJECTS for form in FORMS]
    return [conversation(question, system=index % 2 == 0) for index, question in enumerate(questions)]


def of_file(path: Path) -> list[list[ChatMessage]]:
    """The first turn of every question in a file of JSON lines."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [conversation(json.loads(line)["turns"][0], system=False) for line in lines]


def conversation(question: str, *, system: bool) -> list[ChatMessage]:
    """A first turn."""
    turn: ChatMessage = {"role": "user", "content": question}
    return [{"role": "system", "content": ROLE}, turn] if system else [turn]
