"""Chat templates render as Hugging Face's ``apply_chat_template`` would."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tilert_stream.errors import ConfigError, InvalidRequest
from tilert_stream.model.chat_template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def refused(source: str, deep: object = None) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source).render(HI, deep=deep)
    assert caught.value.param == "messages"
    assert "Traceback" not in caught.value.message
    assert ".py" not in caught.value.message
    return caught.value


def test_blocks_leave_no_blank_lines() -> None:
    source = (
        "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}"
    )
    assert ChatTemplate(source).render(HI) == "hi\n"


def test_variables() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ enable_thinking }}"
        "{{ add_generation_prompt }}",
        {"bos_token": "<s>"},
    )
    assert template.render(HI, enable_thinking=False) == "<s>TrueTrueFalseTrue"
    assert template.render(HI, add_generation_prompt=False, self=1).endswith("False")


def test_tojson_keeps_text_as_it_is() -> None:
    source = "{{ {'b': '<é>', 'a': 1} | tojson }}{{ [1] | tojson(indent=1) }}"
    assert ChatTemplate(source).render(HI) == '{"b": "<é>", "a": 1}[\n 1\n]'


def test_strftime_now() -> None:
    year = ChatTemplate("{{ strftime_now('%Y') }}").render(HI)
    assert len(year) == 4
    assert year.isdigit()


def test_generation_tag_and_loop_controls() -> None:
    source = (
        "{% for n in [1, 2, 3] %}{% if n == 2 %}{% continue %}{% endif %}"
        "{% generation %}{{ n }}{% endgeneration %}{% endfor %}"
    )
    assert ChatTemplate(source).render(HI) == "13"


def test_what_the_template_says_reaches_the_client() -> None:
    error = refused("{{ raise_exception('roles must alternate') }}")
    assert error.message.endswith("refuses these messages: roles must alternate")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("{{ messages[0].content + 5 }}", "TypeError"),
        ("{{ missing.attribute }}", "UndefinedError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ messages.__class__.__mro__ }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_a_failing_template_is_a_client_error(source: str, kind: str) -> None:
    assert f"({kind})" in refused(source).message


def test_nesting_beyond_json_dumps() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    for _ in range(900):
        deep = [deep]
    assert "(RecursionError)" in refused("{{ deep | tojson }}", deep).message


def test_broken_template() -> None:
    with pytest.raises(ConfigError, match="not valid Jinja"):
        ChatTemplate("{% if %}")


def test_without_jinja2() -> None:
    """A model card, and a base model, need no jinja2; a template says what to install."""
    code = (
        "import sys; sys.modules['jinja2'] = None\n"
        "import tilert_stream.model.card, tilert_stream.openai.chat\n"
        "from tilert_stream.model.chat_template import ChatTemplate\n"
        "from tilert_stream.errors import ConfigError\n"
        "try: ChatTemplate('')\n"
        "except ConfigError as error: print(error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'tilert-stream[engine]'" in done.stdout
