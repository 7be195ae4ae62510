"""From a call's choices to OpenAI's answers: whole, or as server-sent events. Pure: bytes in the end, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.errors import PhaseServeError
from contracts.request import FinishReason
from router.call import Call
from router.choice import ShownToken
from router.chunk_frame import ChunkFrame
from router.generation import Endpoint
from router.logprob_tables import EchoedPrompt, chat_logprobs, joined, text_logprobs
from router.openai_reply import (
    UNSET,
    Answer,
    ChatChoice,
    ChatChunkChoice,
    ChatMessage,
    Delta,
    PromptTokensDetails,
    TextChoice,
    TextLogprobs,
    UnsetType,
    Usage,
    error_body,
)
from router.token_table import TokenTable

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"


class Answers:
    """Builds the answer of one call. For a stream: `events` for each set of changed choices, then `closing`."""

    def __init__(self, call: Call, table: TokenTable) -> None:
        self._call = call
        self._table = table
        self._generation = call.generation
        self._is_chat = call.generation.endpoint is Endpoint.CHAT
        self._opened = [False] * len(call.choices)
        self._closed = [False] * len(call.choices)
        self._num_open = len(call.choices)
        self._frames: list[ChunkFrame | None] = [None] * len(call.choices)
        self._only_text_changes = call.generation.logprobs is None and not call.generation.continuous_usage
        echo = call.generation.echo
        self._echoes = [EchoedPrompt(prompt, table) for prompt in call.generation.prompts] if echo else []

    # ---- whole --------------------------------------------------------------------------------------------------

    def whole(self) -> bytes:
        """The answer of an ended call."""
        if self._is_chat:
            return self._envelope("chat.completion", [self._chat_choice(i) for i in self._indexes], self.usage())
        choices = [self._text_choice(i, *self._call.choices[i].take()) for i in self._indexes]
        return self._envelope("text_completion", choices, self.usage())

    def usage(self) -> Usage:
        """Tokens so far; `cached_tokens` once the replicas of every first choice of a prompt have said so."""
        prompt_tokens = sum(len(prompt.token_ids) for prompt in self._generation.prompts)
        completion_tokens = self._call.num_tokens
        flights = self._call.flights
        cached = [  # a continued sequence may find output tokens in a cache as well
            min(usage.cached_tokens, len(flight.token_ids))
            for flight in flights
            if (usage := flight.tracks[0].usage) is not None
        ]
        details = PromptTokensDetails(sum(cached)) if len(cached) == len(flights) else None
        return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, details)

    # ---- streamed -----------------------------------------------------------------------------------------------

    def events(self, changed: list[int]) -> bytes:
        """Server-sent events for what became showable; empty when nothing did."""
        return b"".join(self.event(index) for index in changed)

    def event(self, index: int) -> bytes:
        """The same for one choice. Once it is open, and until its end, only the text differs between its events."""
        choice = self._call.choices[index]
        if not self._only_text_changes or not self._opened[index] or choice.finish_reason is not None:
            return b"".join(self._events_of(index))
        text = choice.take_text()
        if not text:
            return b""
        frame = self._frames[index]
        if frame is None:
            frame = self._frames[index] = ChunkFrame(lambda text: self._text_event(index, text))
        return frame(text)

    @property
    def all_closed(self) -> bool:
        """Every choice's finish reason was put into an event."""
        return self._num_open == 0

    def closing(self) -> bytes:
        """The usage chunk if it was asked for, and the end."""
        if not self._generation.include_usage:
            return DONE
        return _event(self._envelope(self._chunk_object, [], self.usage())) + DONE

    def _events_of(self, index: int) -> list[bytes]:
        choice = self._call.choices[index]
        if self._closed[index] or (choice.num_tokens == 0 and choice.finish_reason is None):
            return []  # prompt log probabilities alone
        text, tokens = choice.take()
        finish = choice.finish_reason
        if finish is not None:
            self._closed[index] = True
            self._num_open -= 1
        first, self._opened[index] = not self._opened[index], True
        if self._is_chat:
            opening = [ChatChunkChoice(index, Delta(role="assistant", content=""))] if first else []
            return [self._chunk(choice) for choice in opening + self._chat_delta(index, text, tokens, finish)]
        if not text and finish is None and not (first and self._echoes):
            self._opened[index] = not first
            return []
        return [self._chunk(self._text_choice(index, text, tokens, echo=first))]

    def _text_event(self, index: int, text: str) -> bytes:
        """What a token in the middle of a choice gives, if it is nothing but text."""
        if self._is_chat:
            return b"".join(map(self._chunk, self._chat_delta(index, text, [], None)))
        return self._chunk(self._text_choice(index, text, [], echo=False))

    def _chat_delta(
        self, index: int, text: str, tokens: list[ShownToken], finish: FinishReason | None
    ) -> list[ChatChunkChoice]:
        if not text and finish is None:
            return []
        logprobs = chat_logprobs(tokens, self._table) if self._generation.logprobs is not None else None
        return [ChatChunkChoice(index, Delta(content=text or UNSET), logprobs, finish)]

    def _chunk(self, choice: ChatChunkChoice | TextChoice) -> bytes:
        usage: Usage | UnsetType | None = UNSET
        if self._generation.continuous_usage:
            usage = self.usage()
        elif self._generation.include_usage:
            usage = None
        return _event(self._envelope(self._chunk_object, [choice], usage))

    # ---- choices ------------------------------------------------------------------------------------------------

    def _chat_choice(self, index: int) -> ChatChoice:
        choice = self._call.choices[index]
        text, tokens = choice.take()
        logprobs = chat_logprobs(tokens, self._table) if self._generation.logprobs is not None else None
        assert choice.finish_reason is not None
        return ChatChoice(index, ChatMessage("assistant", text), logprobs, choice.finish_reason)

    def _text_choice(self, index: int, text: str, tokens: list[ShownToken], *, echo: bool = True) -> TextChoice:
        choice = self._call.choices[index]
        echoed = self._echoes[index // self._generation.n] if self._echoes else None
        logprobs: TextLogprobs | None = None
        if self._generation.logprobs is not None:
            logprobs = text_logprobs(tokens, self._table, len(echoed.text) if echoed else 0)
            if echoed and echo:
                logprobs = joined(echoed.logprobs(choice.prompt_logprobs), logprobs)
        shown = echoed.text + text if echoed and echo else text
        return TextChoice(index, shown, logprobs, choice.finish_reason)

    @property
    def _indexes(self) -> range:
        return range(len(self._call.choices))

    @property
    def _chunk_object(self) -> str:
        return "chat.completion.chunk" if self._is_chat else "text_completion"

    def _envelope(self, kind: str, choices: Sequence[object], usage: Usage | UnsetType | None) -> bytes:
        generation = self._generation
        return _encode(
            Answer(
                id=generation.id,
                object=kind,
                created=generation.created,
                model=generation.model,
                choices=list(choices),
                usage=usage,
            )
        )


def error_events(error: PhaseServeError) -> bytes:
    """How a stream that began ends when it fails."""
    return _event(_encode(error_body(error.info()))) + DONE


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"
