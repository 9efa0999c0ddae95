import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from mesp_core.data.chat_template import ChatTemplate, join_with_spans
from mesp_core.errors import CheckpointError, DataError

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def render(make_model):
    """render(source, messages=USER, **tokenizer_config) -> text."""

    def run(source, messages=USER, **config):
        return ChatTemplate.from_model_dir(make_model(source, **config)).render(messages)

    return run


# Where it is found


def test_none_without_a_template(plain_model, tmp_path):
    assert ChatTemplate.from_model_dir(plain_model) is None
    assert ChatTemplate.from_model_dir(tmp_path / "no-such-folder") is None


def test_entry_of_tokenizer_config(render):
    assert render("[{{ messages[0].content }}]") == "[hi]"


def test_named_templates_use_default(render):
    assert render([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]) == "yes"


def test_the_file_comes_before_the_entry(make_model):
    folder = make_model("entry")
    (folder / "chat_template.jinja").write_text("file ä", encoding="utf-8")
    assert ChatTemplate.from_model_dir(folder).render(USER) == "file ä"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ([{"name": "rag", "template": "x"}], 'rag.*"default"'),
        (7, "neither a string nor a list"),
        ("{% for %}", "not valid Jinja: line 1"),
        ("{{ messages | no_such_filter }}", "not valid Jinja"),
    ],
)
def test_an_unusable_template_is_a_checkpoint_error(make_model, template, words):
    folder = make_model(template)
    with pytest.raises(CheckpointError, match=words) as caught:
        ChatTemplate.from_model_dir(folder)
    assert str(folder) in str(caught.value)


def test_broken_tokenizer_config(make_model):
    folder = make_model("x")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not valid JSON"):
        ChatTemplate.from_model_dir(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected a JSON object"):
        ChatTemplate.from_model_dir(folder)


# What it may use


def test_special_tokens_as_string_object_or_null(render):
    source = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}"
    assert render(source, bos_token="<s>", eos_token={"content": "</s>", "lstrip": False}, pad_token=None) == "<s>|</s>||"


def test_special_token_of_a_wrong_type(make_model):
    with pytest.raises(CheckpointError, match='"bos_token" is 5'):
        ChatTemplate.from_model_dir(make_model("x", bos_token=5))


def test_blocks_leave_no_white_space(render):
    assert render("{% if true %}\n  {% for m in messages %}\nx\n  {% endfor %}\n{% endif %}\n") == "x\n"


def test_loop_controls(render):
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"


def test_tojson_is_plain_json(render):
    value = {"b": "<é&'🚀>", "a": [1]}
    messages = [{"role": "user", "content": "", "arguments": value}]
    assert render("{{ messages[0].arguments | tojson }}", messages) == json.dumps(value, ensure_ascii=False)
    assert render("{{ messages[0].arguments | tojson(indent=2) }}", messages, name="other") == json.dumps(
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


def test_raise_exception_and_failures_name_the_model_folder(make_model):
    for name, source, words in (
        ("a", "{{ raise_exception('Only user and assistant roles.') }}", "refuses.*Only user and assistant roles"),
        ("b", "{{ messages[0].content + 1 }}", "fails"),
        ("c", "{{ messages[9].content }}", "fails"),
        ("d", "{{ 1 // 0 }}", "fails"),
        ("e", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "fails"),
    ):
        folder = make_model(source, name=name)
        with pytest.raises(DataError, match=words) as caught:
            ChatTemplate.from_model_dir(folder).render(USER)
        assert str(folder) in str(caught.value)


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
def test_the_sandbox_holds(make_model, source):
    folder = make_model(source)
    with pytest.raises(CheckpointError) as caught:
        ChatTemplate.from_model_dir(folder).render(USER)
    assert str(folder) in str(caught.value) and "unsafe" in str(caught.value)
    assert USER == [{"role": "user", "content": "hi"}]


def test_ordinary_arithmetic_is_allowed(render):
    assert render("{{ 3 * 4 }} {{ 2 ** 10 }} {{ '-' * 5 }} {{ [0] * 2 }}") == "12 1024 ----- [0, 0]"


# Spans


def parts(template, messages):
    text, spans = template.render_with_spans(messages)
    assert text == template.render(messages)
    return [text[start:end] for start, end in spans]


def test_spans_hold_the_content_and_the_end_of_turn_but_not_the_header(chat_model, chat):
    template = ChatTemplate.from_model_dir(chat_model)
    assert parts(template, chat("q1", "a 👩🏽‍🚀 é", "q2", "a2")) == ["a 👩🏽‍🚀 é<|im_end|>\n", "a2<|im_end|>\n"]
    assert parts(template, chat("q1", "a", "q2")) == ["a<|im_end|>\n"]
    assert parts(template, chat("q1")) == []


def test_spans_with_the_same_text_in_prompt_and_answer(chat_model, chat):
    template = ChatTemplate.from_model_dir(chat_model)
    text, spans = template.render_with_spans(chat("same", "same"))
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
def test_a_template_without_the_prefix_property_is_refused_for_spans_only(make_model, chat, source):
    folder = make_model(source)
    template = ChatTemplate.from_model_dir(folder)
    messages = chat("q1", "a1", "q2", "a2")
    assert template.render(messages)
    with pytest.raises(DataError, match="loss_on=completion can't be used") as caught:
        template.render_with_spans(messages)
    assert str(folder) in str(caught.value) and "loss_on=all" in str(caught.value)


def test_without_a_template_contents_are_joined(chat):
    text, spans = join_with_spans(chat("q", "first", "", "second"))
    assert text == "q\nfirst\n\nsecond"
    assert [text[a:b] for a, b in spans] == ["first", "second"]


# Against the real thing


def test_same_text_as_transformers(smollm2, chat):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2)
    ours = ChatTemplate.from_model_dir(smollm2)
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
    assert ChatTemplate.from_model_dir(Path(folder)).render(messages) == expected
