"""Chat templates: found, rendered as Hugging Face does, sandboxed, and refusals told."""

import json
from pathlib import Path

import pytest

from octavo_runtime.errors import InvalidRequest, ModelNotFound, UnsupportedModel
from octavo_runtime.testing import write_model
from octavo_runtime.text.chat import ChatTemplate
from octavo_runtime.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, str]] | None = None, **special: str) -> str:
    return ChatTemplate(source, special, origin="test").render(messages or HELLO)


def test_render_trims_blocks_and_adds_the_prompt() -> None:
    source = "{% for m in messages %}\n{{ m.role }}:{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}A{% endif %}"
    assert render(source) == "user:hi\nA"


def test_render_knows_special_tokens() -> None:
    assert render("{{ bos_token }}{{ eos_token }}x", bos_token="<s>") == "<s>x"  # noqa: S106 - no password, a token of text


def test_render_generation_block_is_its_content() -> None:
    assert render("a{% generation %}b{{ 1 + 1 }}{% endgeneration %}c") == "ab2c"


def test_render_loop_controls() -> None:
    assert render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"


def test_render_tojson_escapes_nothing_for_html() -> None:
    assert render("{{ messages | tojson }}", [{"role": "é", "content": "<&>"}]) == '[{"role": "é", "content": "<&>"}]'


def test_render_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}").startswith("20")


def test_render_raise_exception_is_the_users_error() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ nothing.at.all }}",
        "{{ 'a' + 1 }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_render_refuses_what_the_sandbox_forbids(source: str) -> None:
    with pytest.raises(InvalidRequest):
        render(source)


def test_template_that_does_not_parse_names_file_and_line(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("a\n{% if %}")
    with pytest.raises(UnsupportedModel, match=r"chat_template\.jinja .* line 2"):
        Tokenizer(tmp_path)


def test_of_prefers_the_file_over_the_key(tmp_path: Path) -> None:
    write_model(tmp_path, chat_template="key")
    (tmp_path / "chat_template.jinja").write_text("file")
    template = Tokenizer(tmp_path).chat_template
    assert template is not None
    assert template.render(HELLO) == "file"


def test_of_named_templates_takes_default(tmp_path: Path) -> None:
    write_model(tmp_path)
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = Tokenizer(tmp_path).chat_template
    assert template is not None
    assert template.render(HELLO) == "d</s>"


def test_of_model_without_template(tmp_path: Path) -> None:
    assert Tokenizer(write_model(tmp_path, chat_template=None)).chat_template is None


def test_tokenizer_missing_or_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)
    write_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(UnsupportedModel, match=r"tokenizer_config\.json"):
        Tokenizer(tmp_path)
