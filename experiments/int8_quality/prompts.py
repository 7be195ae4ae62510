"""200 user messages of real English: questions on many topics in many forms, and tasks about short texts."""

from __future__ import annotations

from experiments.int8_quality.texts import TEXTS

_TOPICS = (
    "volcanoes",
    "the French Revolution",
    "learning to play the piano",
    "electric cars",
    "the human heart",
    "growing tomatoes on a balcony",
    "the stock market",
    "Shakespeare's tragedies",
    "black holes",
    "saving money as a student",
    "the Silk Road",
    "honey bees",
    "writing a good CV",
    "the water cycle",
    "machine learning",
    "migraine",
    "Japanese cooking",
    "the Olympic Games",
    "noise in big cities",
    "raising a puppy",
)
_QUESTIONS = (
    "Explain {} to a ten-year-old child in three sentences.",
    "What are the most common mistakes that people make about {}?",
    "Give me a numbered list of five surprising facts about {}.",
    "Write the first paragraph of a newspaper article about {}.",
    "I have to give a short talk about {}. What should its outline be?",
    "Why does {} matter today?",
    "Write a short dialogue in which two friends disagree about {}.",
)
_TASKS = (
    "Summarise the following text in one sentence.\n\n{}",
    "{}\n\nWhat is the main point of this text, and which detail supports it best?",
    "Continue this text in the same style.\n\n{}",
)


def user_messages() -> tuple[str, ...]:
    """The 200 messages, in a fixed order that mixes short and long ones."""
    questions = [form.format(topic) for topic in _TOPICS for form in _QUESTIONS]
    tasks = [form.format(text) for text in TEXTS for form in _TASKS]
    # Seven questions, then three tasks, twenty times over.
    groups = zip(_blocks(questions, len(_QUESTIONS)), _blocks(tasks, len(_TASKS)), strict=True)
    return tuple(message for block in groups for part in block for message in part)


def _blocks(messages: list[str], size: int) -> list[list[str]]:
    return [messages[first : first + size] for first in range(0, len(messages), size)]
