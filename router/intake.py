"""From a request body to a `Generation`: all validation, the chat template, tokenising. Nothing is dispatched here."""

from __future__ import annotations

import time
from typing import Any

from contracts.errors import InvalidRequest, UnknownModel
from contracts.request import SamplingParams
from router.chat_messages import check_messages
from router.chat_template import ChatTemplate
from router.client_text import clip
from router.config import RequestLimits
from router.generation import Endpoint, Generation, Prompt
from router.json_body import parse_body
from router.openai_schema import ChatBody, CompletionBody
from router.sampling_rules import sampling_params, stop_strings
from router.tokenizing import PromptEncoder
from router.wishes import wished_layout, wished_on_unavailable

DEFAULT_COMPLETION_TOKENS = 16


class Intake:
    """Judges requests for one served model."""

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        limits: RequestLimits,
        vocab_size: int,
        encoder: PromptEncoder,
        template: ChatTemplate | None,
    ) -> None:
        self._names = names
        self._limits = limits
        self._vocab_size = vocab_size
        self._encoder = encoder
        self._template = template

    async def chat(self, body: bytes, request_id: str) -> Generation:
        """Raises `InvalidRequest` or `UnknownModel`, naming the field."""
        fields = parse_body(body, ChatBody)
        self._check_model(fields.model)
        sampling = sampling_params(fields, self._limits, self._vocab_size)
        prompt = await self._chat_prompt(fields)
        if fields.max_tokens is not None and fields.max_completion_tokens not in {None, fields.max_tokens}:
            raise InvalidRequest("max_completion_tokens: differs from max_tokens", param="max_completion_tokens")
        asked = fields.max_completion_tokens or fields.max_tokens
        name = "max_completion_tokens" if fields.max_completion_tokens else "max_tokens"
        bound = self._token_bound(prompt, asked, None, name)
        return self._generation(fields, Endpoint.CHAT, request_id, (prompt,), (bound,), sampling)

    async def completion(self, body: bytes, request_id: str) -> Generation:
        """Raises `InvalidRequest` or `UnknownModel`, naming the field."""
        fields = parse_body(body, CompletionBody)
        self._check_model(fields.model)
        sampling = sampling_params(fields, self._limits, self._vocab_size)
        if fields.best_of not in {None, fields.n or 1}:
            raise InvalidRequest("best_of: only best_of equal to n is supported", param="best_of")
        prompts = await self._completion_prompts(fields.prompt)
        bounds = tuple(
            self._token_bound(p, fields.max_tokens, DEFAULT_COMPLETION_TOKENS, "max_tokens") for p in prompts
        )
        return self._generation(fields, Endpoint.COMPLETIONS, request_id, prompts, bounds, sampling)

    def _generation(
        self,
        fields: ChatBody | CompletionBody,
        endpoint: Endpoint,
        request_id: str,
        prompts: tuple[Prompt, ...],
        bounds: tuple[int, ...],
        sampling: SamplingParams,
    ) -> Generation:
        n = fields.n or 1
        if n * len(prompts) > self._limits.max_choices:
            reason = f"{len(prompts)} prompts x {n} choices; at most {self._limits.max_choices} choices in one request"
            raise InvalidRequest(f"n: {reason}", param="n")
        if (fields.min_tokens or 0) > min(bounds):
            raise InvalidRequest("min_tokens: greater than max_tokens", param="min_tokens")
        if fields.stream_options is not None and not fields.stream:
            raise InvalidRequest("stream_options: only allowed with stream true", param="stream_options")
        options = fields.stream_options
        return Generation(
            endpoint=endpoint,
            id=request_id,
            created=int(time.time()),
            model=fields.model,
            prompts=prompts,
            n=n,
            sampling=sampling,
            max_tokens=bounds,
            stops=stop_strings(fields.stop, self._limits),
            logprobs=sampling.logprobs,
            echo=isinstance(fields, CompletionBody) and bool(fields.echo),
            stream=bool(fields.stream),
            include_usage=options is not None and bool(options.include_usage),
            continuous_usage=options is not None and bool(options.continuous_usage_stats),
            priority=fields.priority or 0,
            user=fields.user or "",
            layout=wished_layout(fields.phaseserve),
            on_unavailable=wished_on_unavailable(fields.phaseserve),
        )

    def _check_model(self, name: str) -> None:
        if name not in self._names:
            raise UnknownModel(
                f"the model {clip(name)!r} is not served here; served: {', '.join(self._names)}", param="model"
            )

    async def _chat_prompt(self, fields: ChatBody) -> Prompt:
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        continued = bool(fields.continue_final_message)
        if continued and fields.add_generation_prompt:
            reason = "cannot be true together with add_generation_prompt"
            raise InvalidRequest(f"continue_final_message: {reason}", param="continue_final_message")
        messages = check_messages(
            fields.messages,
            max_messages=self._limits.max_messages,
            renders_tool_calls=self._template.renders_tool_calls,
        )
        if continued:
            text = self._template.render_continued(messages)
        else:
            opens = True if fields.add_generation_prompt is None else fields.add_generation_prompt
            text = self._template.render(messages, add_generation_prompt=opens)
        # The template writes the special tokens itself (vLLM issue 2012: a second BOS).
        return Prompt(await self._encoder.encode(text, add_special_tokens=False, param="messages"), text)

    async def _completion_prompts(self, prompt: Any) -> tuple[Prompt, ...]:
        """The four shapes of OpenAI's `prompt`: a text, texts, token ids, lists of token ids."""
        if isinstance(prompt, str):
            return (await self._text_prompt(prompt, "prompt"),)
        if not isinstance(prompt, list) or not prompt:
            raise InvalidRequest(
                "prompt: expected a string, or a non-empty list of strings or token ids", param="prompt"
            )
        if type(prompt[0]) is int:
            return (self._ids_prompt(prompt, "prompt"),)
        if len(prompt) > self._limits.max_prompts:
            raise InvalidRequest(f"prompt: {len(prompt)} prompts, at most {self._limits.max_prompts}", param="prompt")
        return tuple([await self._one_of_prompts(item, f"prompt[{i}]") for i, item in enumerate(prompt)])

    async def _one_of_prompts(self, item: Any, where: str) -> Prompt:
        if isinstance(item, str):
            return await self._text_prompt(item, where)
        if isinstance(item, list):
            return self._ids_prompt(item, where)
        raise InvalidRequest(f"{where}: expected a string or a list of token ids", param=where)

    def _ids_prompt(self, items: list[Any], where: str) -> Prompt:
        """Looked at one by one only when there are not too many."""
        if len(items) < self._encoder.max_context():
            for i, item in enumerate(items):
                if type(item) is not int:
                    raise InvalidRequest(f"{where}[{i}]: expected a token id", param=f"{where}[{i}]")
        return Prompt(self._encoder.check(tuple(items), where))

    async def _text_prompt(self, text: str, where: str) -> Prompt:
        if not text:
            raise InvalidRequest(f"{where}: the prompt is empty", param=where)
        return Prompt(await self._encoder.encode(text, add_special_tokens=True, param=where), text)

    def _token_bound(self, prompt: Prompt, asked: int | None, default: int | None, name: str) -> int:
        """How many tokens may be generated after `prompt`; without a wish of the client's the default, if it fits."""
        context = self._encoder.max_context()
        room = context - len(prompt.token_ids)
        if asked is None:
            return room if default is None else min(default, room)
        if asked > room:
            length = len(prompt.token_ids)
            reason = f"{length} prompt tokens + {asked} exceed the context of {context} tokens"
            raise InvalidRequest(f"{name}: {reason}", param=name)
        return asked
