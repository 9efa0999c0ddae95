"""Method strings: what may be written, and every refusal."""

import pytest

from mesp_core.errors import UsageError
from mesp_core.methods.names import DESCRIPTIONS, METHODS, folder_name, parse_method, parse_methods


@pytest.mark.parametrize(
    "text, name, options",
    [
        ("mesp", "mesp", {}),
        ("mesp-store-h", "mesp-store-h", {}),
        (" mebp ", "mebp", {}),
        ("autodiff:grad-checkpoint", "autodiff", {"grad-checkpoint": True}),
        ("mesp:weights=resident", "mesp", {"weights": "resident"}),
        ("mebp:weights=streamed", "mebp", {"weights": "streamed"}),
    ],
)
def test_what_may_be_written(text, name, options):
    spec = parse_method(text)
    assert (spec.key, spec.name, spec.options) == (text.strip(), name, options)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", ["''", "autodiff, mebp, mesp, mesp-store-h"]),
        ("MeSP", ["'MeSP'", "mesp"]),
        ("lean2", ["'lean2'"]),
        ("mesp:", ["''", "weights"]),
        ("mesp:grad-checkpoint", ["'grad-checkpoint'", "weights"]),
        ("autodiff:weights=resident", ["'weights'", "grad-checkpoint"]),
        ("mesp:weights", ["weights=''", "streamed, resident"]),
        ("mesp:weights=", ["weights=''", "streamed, resident"]),
        ("mesp:weights=fast", ["weights='fast'", "streamed, resident"]),
        ("mesp:weights=resident=now", ["weights='resident=now'"]),
        ("mesp:weights=resident:weights=streamed", ["'weights'", "twice"]),
        ("autodiff:grad-checkpoint=yes", ["'grad-checkpoint'", "no value"]),
        ("autodiff:grad-checkpoint=", ["'grad-checkpoint'", "no value"]),
    ],
)
def test_refusals_name_what_is_wrong_and_what_is_allowed(text, said):
    with pytest.raises(UsageError) as caught:
        parse_method(text)
    assert caught.value.exit_code == 2
    for part in ["method", *said]:
        assert part in str(caught.value)


def test_a_list():
    assert [spec.key for spec in parse_methods("mebp, mesp,mesp:weights=resident,")] == [
        "mebp",
        "mesp",
        "mesp:weights=resident",
    ]


@pytest.mark.parametrize(
    "text, said", [("", "none given"), (" , ", "none given"), ("mesp,mebp, mesp", "'mesp' is named twice")]
)
def test_a_list_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_methods(text)


def test_every_method_is_described():
    assert list(DESCRIPTIONS) == list(METHODS)


def test_folder_names_are_distinct_and_plain():
    keys = [name for name in METHODS] + ["autodiff:grad-checkpoint", "mesp:weights=resident", "mesp:weights=streamed"]
    names = [folder_name(key) for key in keys]
    assert len(set(names)) == len(names)
    assert not any(character in name for name in names for character in ":/\\")
