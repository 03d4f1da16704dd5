"""The offline form: the same engine as behind `octavo serve`, in this process and without a server."""

from __future__ import annotations

import difflib
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from octavo_runtime.domain import EngineConfig, EngineInfo, Request, SamplingParams
from octavo_runtime.engine.loop import EngineCore
from octavo_runtime.errors import InvalidRequest
from octavo_runtime.text.admission import admit
from octavo_runtime.text.output import OutputText
from octavo_runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # it brings torch, which only LLM(model) needs
    from octavo_runtime.engine.executor import Executor

__all__ = ["LLM", "RequestOutput"]

_SHOW_AFTER = 1.0  # seconds: what is done sooner needs no progress bar

_DTYPES = ("auto", "float32", "float16", "bfloat16")
_ALLOWED: dict[str, tuple[object, ...]] = {
    "device": ("auto", "cpu", "cuda"),
    "dtype": _DTYPES,
    "kv_cache_dtype": _DTYPES,
    "block_size": (8, 16, 32),
    "enable_prefix_caching": (True, False),
}
_POSITIVE = frozenset({"max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory"})

Prompt = str | Sequence[int]
Chat = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What became of one prompt.

    Attributes:
        prompt_token_ids: The prompt as the model saw it.
        text: The answer, without the stop string or end of sequence.
        token_ids: The answer's tokens, with them.
        finish_reason: stop, length or error.
        stop_reason: The stop string or stop token of the request that ended it; None for an end of sequence.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        error: A sentence, when the reason is error.
    """

    prompt_token_ids: tuple[int, ...]
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    num_cached_tokens: int
    error: str | None


@dataclass(slots=True)
class _Answer:
    request: Request
    output: OutputText
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    result: RequestOutput | None = None


class LLM:
    """A model, loaded.

    Example:
        >>> llm = LLM("models/smollm2", kv_cache_memory=512 << 20)
        >>> llm.generate("The capital of France is", SamplingParams(temperature=0, max_tokens=8))[0].text

    Args:
        model: Directory of the model.
        executor: One that is loaded already; None: load the model's weights.
        settings: Fields of `EngineConfig`, such as dtype, max_model_len or kv_cache_memory (bytes).

    Raises:
        TypeError: A setting that does not exist.
        ValueError: A value that is not allowed.
        StartError: The model cannot be loaded; the class tells the cause.
    """

    def __init__(self, model: str | Path, *, executor: Executor | None = None, **settings: Any) -> None:
        config = EngineConfig(model=str(model), **_known(settings))
        self._tokenizer = Tokenizer(Path(model))
        self._numbers = itertools.count()
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
            sampling_params: For all prompts, or one for each; None: the defaults.
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
            sampling_params: For all, or one for each; None: the defaults.
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
            sampling = [sampling_params or SamplingParams()] * len(prompts)
        else:
            sampling = list(sampling_params)
            if len(sampling) != len(prompts):
                raise InvalidRequest(f"there are {len(prompts)} prompts, but {len(sampling)} sampling_params")
        answers = {
            request.request_id: _Answer(request, OutputText(self._tokenizer, request.sampling))
            for request in [
                admit(str(next(self._numbers)), prompt, each, self.info, arrival=time.monotonic())
                for prompt, each in zip(prompts, sampling, strict=True)
            ]
        }
        try:
            for answer in answers.values():
                self._core.add(answer.request)
            with _Bar(wanted=progress) as bar:
                while self._core.has_work:
                    self._step(answers)
                    ended = sum(answer.result is not None for answer in answers.values())
                    bar.show("generating", ended, len(answers))
        finally:
            for request_id in answers:  # after Ctrl-C the engine goes on without them
                self._core.abort(request_id)
        results = [answer.result for answer in answers.values()]
        assert all(result is not None for result in results), "the engine lost a request"
        return [result for result in results if result is not None]

    def _step(self, answers: dict[str, _Answer]) -> None:
        for event in self._core.step().events:
            answer = answers[event.request_id]
            delta = answer.output.push(event)
            answer.texts.append(delta.text)
            answer.token_ids += delta.token_ids
            if delta.finish_reason is not None:
                self._core.abort(event.request_id)  # does nothing where the engine ended it
                answer.result = RequestOutput(
                    prompt_token_ids=answer.request.prompt_token_ids,
                    text="".join(answer.texts),
                    token_ids=tuple(answer.token_ids),
                    finish_reason=delta.finish_reason.value,
                    stop_reason=delta.stop_reason,
                    num_cached_tokens=event.num_cached_tokens,
                    error=delta.error,
                )


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


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    names = [each.name for each in fields(EngineConfig) if each.name != "model"]
    for name in settings:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            raise TypeError(f"LLM has no setting {name}: {hint}")
    for name, value in settings.items():
        allowed = _ALLOWED.get(name)
        if allowed is not None and value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")
        if name in _POSITIVE and value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{name} must be a whole number, 1 or more, not {value!r}")
    if not 0 < settings.get("gpu_memory_utilization", 1) <= 1:
        raise ValueError(f"gpu_memory_utilization must be in (0, 1], not {settings['gpu_memory_utilization']!r}")
    return settings
