import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from mesp_core.data.chat_template import ChatTemplate
from mesp_core.data.template_choice import CHATML
from mesp_core.errors import CheckpointError, DataError

USER = [{"role": "user", "content": "hi"}]


MODEL = Path("/models/some-model")


def template(source, **options):
    return ChatTemplate(source, origin=MODEL, **options)


@pytest.fixture
def render():
    """render(source, messages=USER, **special_tokens) -> text."""

    def run(source, messages=USER, **special_tokens):
        return template(source, special_tokens=special_tokens).render(messages)

    return run


@pytest.mark.parametrize("source", ["{% for %}", "{{ messages | no_such_filter }}"])
def test_an_unusable_template_is_a_checkpoint_error(source):
    with pytest.raises(CheckpointError, match="not valid Jinja: line 1") as caught:
        template(source)
    assert str(MODEL) in str(caught.value)


# What it may use


def test_special_tokens_and_options(render):
    assert render("{{ bos_token }}|{{ cls_token }}", bos_token="<s>", cls_token="[CLS]") == "<s>|[CLS]"
    assert template("{{ enable_thinking }}", options={"enable_thinking": True}).render(USER) == "True"


def test_tools_are_there_if_there_are_any():
    source = "{% if tools is none %}none{% else %}{% for tool in tools %}{{ tool | tojson }};{% endfor %}{% endif %}"
    assert template(source).render(USER) == "none"
    assert template(source).render(USER, ({"name": "f"}, {"name": "g"})) == '{"name": "f"};{"name": "g"};'


def test_messages_as_transformers_hands_them_over(render):
    """What is null is not there, and reasoning has each of the names that templates know."""
    source = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    calls = [{"type": "function"}]
    said = render(source, [{"role": "assistant", "content": None, "tool_calls": calls, "name": None}])
    assert json.loads(said) == {"role": "assistant", "tool_calls": calls}
    for name in ("reasoning_content", "thinking", "reasoning"):
        said = json.loads(render(source, [{"role": "assistant", "content": "x", name: "because"}]))
        assert said["reasoning_content"] == said["thinking"] == "because"


def test_blocks_leave_no_white_space(render):
    assert render("{% if true %}\n  {% for m in messages %}\nx\n  {% endfor %}\n{% endif %}\n") == "x\n"


def test_loop_controls(render):
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_tojson_is_plain_json(render):
    value = {"b": "<é&'🚀>", "a": [1]}
    messages = [{"role": "user", "content": "", "arguments": value}]
    assert render("{{ messages[0].arguments | tojson }}", messages) == json.dumps(value, ensure_ascii=False)
    assert render("{{ messages[0].arguments | tojson(indent=2) }}", messages) == json.dumps(
        value, ensure_ascii=False, indent=2
    )


def test_strftime_now(render):
    assert re.fullmatch(r"\d{4}", year := render("{{ strftime_now('%Y') }}"))
    assert abs(int(year) - datetime.now().year) <= 1


def test_generation_block_renders_its_body(render):
    source = (
        "{% for m in messages %}<{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}>{% endfor %}"
        "{% generation %}{% endgeneration %}"
    )
    assert render(source, USER * 2) == "<hi1><hi2>"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('Only user and assistant roles.') }}", "refuses.*Only user and assistant roles"),
        ("{{ messages[0].content + 1 }}", "fails"),
        ("{{ messages[9].content }}", "fails"),
        ("{{ 1 // 0 }}", "fails"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "fails"),
    ],
)
def test_raise_exception_and_failures_name_the_model_folder(source, words):
    with pytest.raises(DataError, match=words) as caught:
        template(source).render(USER)
    assert str(MODEL) in str(caught.value)


# What it may not do


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ''|map(attribute='__class__')|list }}{{ messages.__class__.__base__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='assistant') }}",
        "{{ range(1000000000) | list }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 100 }}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ 10000000000 * [0] }}",
        "{{ 10 ** 10000000000 }}",
    ],
)
def test_the_sandbox_holds(source):
    with pytest.raises(CheckpointError) as caught:
        template(source).render(USER)
    assert str(MODEL) in str(caught.value) and "unsafe" in str(caught.value)
    assert USER == [{"role": "user", "content": "hi"}]


def test_ordinary_arithmetic_is_allowed(render):
    assert render("{{ 3 * 4 }} {{ 2 ** 10 }} {{ '-' * 5 }} {{ [0] * 2 }}") == "12 1024 ----- [0, 0]"


# Spans


def parts(found, messages):
    text, spans = found.render_with_spans(messages)
    assert text == found.render(messages)
    return [text[start:end] for start, end in spans]


def test_spans_hold_the_content_and_the_end_of_turn_but_not_the_header(chat):
    chatml = template(CHATML)
    assert parts(chatml, chat("q1", "a 👩🏽‍🚀 é", "q2", "a2")) == ["a 👩🏽‍🚀 é<|im_end|>\n", "a2<|im_end|>\n"]
    assert parts(chatml, chat("q1", "a", "q2")) == ["a<|im_end|>\n"]
    assert parts(chatml, chat("q1")) == []


def test_spans_with_the_same_text_in_prompt_and_answer(chat):
    text, spans = template(CHATML).render_with_spans(chat("same", "same"))
    assert spans == [(text.rindex("same"), len(text))]


REWRITES = (
    "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
HEADER_DIFFERS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}bot>{% endif %}"
)
NEEDS_AN_ANSWER = "{% if messages[-1].role == 'user' %}{{ raise_exception('no answer') }}{% endif %}{{ messages }}"


@pytest.mark.parametrize("source", [REWRITES, HEADER_DIFFERS, NEEDS_AN_ANSWER])
def test_a_template_without_the_prefix_property_is_refused_for_spans_only(chat, source):
    found = template(source)
    messages = chat("q1", "a1", "q2", "a2")
    assert found.render(messages)
    with pytest.raises(DataError, match="loss_on=completion can't be used") as caught:
        found.render_with_spans(messages)
    assert str(MODEL) in str(caught.value) and "loss_on=all" in str(caught.value)


# Against the real thing


def test_same_text_as_transformers(smollm2, chat):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    ours = template(theirs.chat_template)
    for messages in (
        chat("Hello", "Hi! 👋🏽"),
        [{"role": "system", "content": "Be brief."}, *chat("a < b & c", "é\n\n", "q", "z")],
        chat("only a question"),
    ):
        for prompt in (False, True):
            expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.render(messages, add_generation_prompt=prompt) == expected
    assert parts(ours, chat("Hello", "Hi! 👋🏽")) == ["Hi! 👋🏽<|im_end|>\n"]


def test_a_template_with_everything_as_transformers(make_model, chat):
    transformers = pytest.importorskip("transformers")
    source = (
        "{{- bos_token }}\n{%- for m in messages %}\n    {%- if m.role == 'system' %}{% continue %}{% endif %}\n"
        "  {{- '<' ~ m.role ~ '>' }}\n  {% generation %}{{ m.content | trim }}{% endgeneration %}\n"
        "{{ m | tojson }}\n{%- endfor %}\n{% if tools is none and not documents %} {{- eos_token }}{% endif %}\n"
    )
    folder = make_model(source, bos_token="<|endoftext|>")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|endoftext|>", eos_token="<|im_end|>"
    )
    messages = [{"role": "system", "content": "x"}, *chat(" <é> ", "b\n")]
    expected = theirs.apply_chat_template(messages, chat_template=source, tokenize=False)
    tokens = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert template(source, special_tokens=tokens).render(messages) == expected
