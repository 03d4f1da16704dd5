"""The offline form: the same engine as behind `octavo serve`, in this process and without a server."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from octavo_runtime.domain import EngineConfig, EngineInfo, Request, SamplingParams
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.errors import InvalidRequest
from octavo_runtime.settings import check_together, check_values, engine_config
from octavo_runtime.text.admission import admit
from octavo_runtime.text.output import Delta, OutputText
from octavo_runtime.text.sampling_defaults import sampling_defaults
from octavo_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # it brings torch, which only LLM(model) needs
    from octavo_runtime.engine.executor import Executor

__all__ = ["LLM", "CompletionOutput", "RequestOutput"]

_SHOW_AFTER = 1.0  # seconds: what is done sooner needs no progress bar

Prompt = str | Sequence[int]
Chat = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer.

    Attributes:
        index: Its number among the answers to the prompt; where they are ranked (best_of, beam search), 0 is the best.
        text: The answer, without the stop string or end of sequence.
        token_ids: The answer's tokens, with them.
        finish_reason: stop, length or error.
        stop_reason: The stop string or stop token of the request that ended it; None for an end of sequence.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What became of one prompt. The properties are those of the first answer: most requests have one.

    Attributes:
        prompt_token_ids: The prompt as the model saw it.
        outputs: The n answers.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        error: A sentence, when a finish reason is error.
    """

    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    num_cached_tokens: int
    error: str | None

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first answer."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        """Why the first answer ended."""
        return self.outputs[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token that ended the first answer."""
        return self.outputs[0].stop_reason


@dataclass(slots=True)
class _Answer:
    output: OutputText
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    end: Delta | None = None

    def whole(self, index: int) -> CompletionOutput:
        assert self.end is not None, "the engine lost an answer"
        assert self.end.finish_reason is not None
        return CompletionOutput(
            index, "".join(self.texts), tuple(self.token_ids), self.end.finish_reason.value, self.end.stop_reason
        )


@dataclass(slots=True)
class _Running:
    request: Request
    answers: list[_Answer]
    num_cached_tokens: int = 0
    error: str | None = None

    def whole(self) -> RequestOutput:
        outputs = tuple(answer.whole(index) for index, answer in enumerate(self.answers))
        return RequestOutput(self.request.prompt_token_ids, outputs, self.num_cached_tokens, self.error)


class LLM:
    """A model, loaded.

    Example:
        >>> llm = LLM("models/smollm2", kv_cache_memory=512 << 20)
        >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text

    Args:
        model: Directory of the model.
        executor: One that is loaded already; None: load the model's weights.
        generation_config: auto: calls without sampling_params sample as the model's generation_config.json recommends;
            none: by the defaults of SamplingParams.
        settings: The flags of `octavo serve` that concern the engine, such as dtype, max_num_seqs, scheduling_policy
            or kv_cache_memory (bytes).

    Raises:
        TypeError: A setting that does not exist.
        ValueError: A value that is not allowed.
        StartError: Settings contradict each other, or the model cannot be loaded; the class tells the cause.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        executor: Executor | None = None,
        generation_config: Literal["auto", "none"] = "auto",
        **settings: Any,
    ) -> None:
        if generation_config not in {"auto", "none"}:
            raise ValueError(f"generation_config must be auto or none, not {generation_config!r}")
        check_values(settings)
        check_together(settings)
        config = engine_config(str(model), settings)
        self._tokenizer = Tokenizer(Path(model))
        self._defaults = SamplingParams(**(sampling_defaults(Path(model)) if generation_config == "auto" else {}))
        self._numbers = itertools.count()
        self._config = config
        self._core = EngineCore(executor or _load(config), config)

    @property
    def info(self) -> EngineInfo:
        """The limits of what was loaded."""
        return self._core.info

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Continues prompts, many at once.

        Args:
            prompts: A text or a list of token ids, or a list of those.
            sampling_params: For all prompts, or one for each; None: the model's defaults.
            progress: Show a bar on a terminal, when it takes more than a moment.

        Returns:
            One output for each prompt, in order.

        Raises:
            InvalidRequest: A prompt or setting that cannot be run; nothing was generated.
        """
        listed = _listed(prompts)
        token_ids = [self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in listed]
        return self._run(token_ids, sampling_params, progress=progress)

    def chat(
        self,
        messages: Chat | Sequence[Chat],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers conversations, with the model's chat template.

        Args:
            messages: A conversation, each message with `role` and `content`; or a list of conversations.
            sampling_params: For all, or one for each; None: the model's defaults.
            progress: Show a bar on a terminal, when it takes more than a moment.

        Raises:
            InvalidRequest: The model has no chat template, or it refuses the messages.
        """
        template = self._tokenizer.chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template; use generate", param="messages")
        chats: Sequence[Any] = [messages] if messages and isinstance(messages[0], dict) else messages
        # The template writes the special tokens itself.
        token_ids = [self._tokenizer.encode(template.render(chat), add_special_tokens=False) for chat in chats]
        return self._run(token_ids, sampling_params, progress=progress)

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        progress: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            sampling = [sampling_params or self._defaults] * len(prompts)
        else:
            sampling = list(sampling_params)
            if len(sampling) != len(prompts):
                raise InvalidRequest(f"there are {len(prompts)} prompts, but {len(sampling)} sampling_params")
        requests = [
            admit(str(next(self._numbers)), prompt, each, self.info, self._config.scheduler, arrival=time.monotonic())
            for prompt, each in zip(prompts, sampling, strict=True)
        ]
        running = {
            request.request_id: _Running(
                request, [_Answer(OutputText(self._tokenizer, request.sampling)) for _ in range(request.sampling.n)]
            )
            for request in requests
        }
        total = sum(request.sampling.n for request in requests)
        ended = 0
        try:
            for request in requests:
                self._core.add(request)
            with _Bar(wanted=progress) as bar:
                while self._core.has_work:
                    ended += self._step(running)
                    bar.show("generating", ended, total)
        finally:
            for request in requests:  # after Ctrl-C the engine goes on without them
                self._core.abort(request.request_id)
        return [each.whole() for each in running.values()]

    def _step(self, running: dict[str, _Running]) -> int:
        """Takes one step; returns how many answers ended with it."""
        ended = 0
        for event in self._core.step().events:
            each = running[event.request_id]
            answer = each.answers[event.choice]
            if answer.end is not None:
                continue  # on their way when a stop string had ended the answer
            delta = answer.output.push(event)
            answer.texts.append(delta.text)
            answer.token_ids += delta.token_ids
            each.num_cached_tokens = max(each.num_cached_tokens, event.num_cached_tokens)
            each.error = each.error or delta.error
            if delta.finish_reason is not None:
                answer.end = delta
                ended += 1
                if event.finish_reason is None:
                    self._core.abort(event.request_id, event.choice)
        return ended


class _Bar:
    """A progress bar on a terminal, for what takes more than a moment."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._wanted = wanted and sys.stderr.isatty()
        self._show_at = time.monotonic() + _SHOW_AFTER
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress.live.is_started:  # to stop what was not started prints an empty line
            self._progress.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        """Shows how far a stage has come."""
        if self._wanted and time.monotonic() >= self._show_at:
            self._progress.start()
            self._progress.update(self._task, description=stage, completed=done, total=total)


def _load(config: EngineConfig) -> Executor:
    from octavo_runtime.engine.executor import load_executor

    with _Bar() as bar:
        return load_executor(config, lambda stage, done, total: bar.show(f"loading {stage}", done, total))


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str) or (prompts and all(isinstance(item, int) for item in prompts)):
        return [prompts]  # type: ignore[list-item] # one prompt
    return prompts  # type: ignore[return-value] # a list of them
