"""Method strings: what may be written, and every refusal."""

import pytest

from mesp_core.errors import UsageError
from mesp_core.methods.names import folder_name, parse_method, parse_methods, parse_size
from mesp_core.methods.record import FLAG, SIZE
from mesp_core.methods.registry import METHODS

MB = 1024 * 1024


@pytest.mark.parametrize(
    "text, name, options",
    [
        ("mesp", "mesp", {}),
        ("mesp-store-h", "mesp-store-h", {}),
        (" mebp ", "mebp", {}),
        ("autodiff:grad-checkpoint", "autodiff", {"grad-checkpoint": True}),
        ("mesp:weights=resident", "mesp", {"weights": "resident"}),
        ("mebp:weights=streamed", "mebp", {"weights": "streamed"}),
        ("mesp-store-h:weights=mapped:loss=full", "mesp-store-h", {"weights": "mapped", "loss": "full"}),
        ("mebp:inputs=disk:tmpfs", "mebp", {"inputs": "disk", "tmpfs": True}),
        ("mesp:tmpfs:inputs=disk", "mesp", {"tmpfs": True, "inputs": "disk"}),
        ("lean", "lean", {}),
        ("lean:budget=450MB", "lean", {"budget": 450 * MB}),
        ("lean:budget=1.5 gb:weights=resident", "lean", {"budget": 1536 * MB, "weights": "resident"}),
    ],
)
def test_what_may_be_written(text, name, options):
    spec = parse_method(text)
    assert (spec.key, spec.name, spec.options) == (text.strip(), name, options)


@pytest.mark.parametrize(
    "text, said",
    [
        ("", ["''", "mebp, mesp, mesp-store-h, lean, autodiff"]),
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
        ("mesp:budget=450MB", ["'budget'", "weights, loss, inputs, tmpfs"]),
        ("lean:budget", ["budget=''", "KB, MB or GB"]),
        ("lean:budget=450", ["budget='450'", "KB, MB or GB"]),
        ("lean:budget=450MB:budget=450MB", ["'budget'", "twice"]),
        ("lean:loss=cut", ["loss='cut'", "chunked, full"]),
        ("lean:tmpfs", ["tmpfs", "inputs=disk"]),
        ("lean:checkpoints=disk", ["'checkpoints'", "called 'inputs' now"]),
        ("mebp:tmpfs:inputs=memory", ["tmpfs", "inputs=disk"]),
        ("mesp:inputs=disk:tmpfs=yes", ["'tmpfs'", "no value"]),
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


@pytest.mark.parametrize(
    "one, other, why",
    [
        ("mesp", "mesp:weights=streamed", "(weights=streamed goes without saying)"),
        ("mesp:loss=chunked", "mesp:inputs=memory", "(inputs=memory, loss=chunked goes without saying)"),
        ("lean:budget=450MB", "lean:budget=450mb", ""),
        ("lean:budget=1GB", "lean:budget=1024.0 MB", ""),
        ("lean:loss=full:budget=1GB", "lean:budget=1GB:loss=full", ""),
    ],
)
def test_the_same_run_written_in_two_ways_is_named_twice(one, other, why):
    for first, second in [(one, other), (other, one)]:
        with pytest.raises(UsageError) as caught:
            parse_methods(f"{first},mebp,{second}")
        assert str(caught.value) == f"methods: {first!r} is named twice: {second!r} is the same run{why and ' ' + why}."


def test_other_runs_of_a_method_may_stand_beside_it():
    keys = ["lean", "lean:budget=450MB", "lean:budget=450KB", "lean:inputs=disk", "lean:inputs=disk:tmpfs", "mesp"]
    assert [spec.key for spec in parse_methods(",".join(keys))] == keys


def test_an_option_not_given_has_its_default():
    spec = parse_method("lean:loss=full")
    assert spec.all_options() == {
        "weights": "streamed",
        "loss": "full",
        "inputs": "memory",
        "tmpfs": False,
        "budget": None,
    }
    assert parse_method("lean:budget=1KB").option("budget") == 1024
    assert parse_method("mebp:inputs=disk:tmpfs").option("tmpfs") is True
    assert parse_method("autodiff").option("grad-checkpoint") is False
    with pytest.raises(KeyError):
        parse_method("mesp").option("budget")


@pytest.mark.parametrize(
    "text, size",
    [
        ("450MB", 450 * MB),
        (" 450 MB ", 450 * MB),
        ("1.5GB", 1536 * MB),
        ("900000KB", 900000 * 1024),
        ("0.5kb", 512),
        ("17.3Mb", round(17.3 * MB)),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size and type(parse_size(text)) is int


def test_what_is_no_size():
    units = ["", "MB", "450", "450M", "450 MiB", "1MB2", "1\nMB"]
    numbers = ["-1MB", "1e3MB", ".5GB", "1.GB", "1,5GB", "infGB", "nanMB", "९MB"]
    amounts = ["0MB", "0.0001KB", "2000000000GB", "9" * 400 + "GB"]
    for text in units + numbers + amounts:
        with pytest.raises(UsageError, match="KB, MB or GB"):
            parse_size(text)


def test_folder_names_are_distinct_and_plain():
    """Also where capitals are no different: every option of every method, alone and in pairs."""
    keys = []
    for method, record in METHODS.items():
        options = record.options
        written = ["tmpfs:inputs=disk"] if "tmpfs" in options else []
        for option, values in options.items():
            values = {FLAG: [], SIZE: ["=450MB", "=450 KB", "=4.50GB"]}.get(values, [f"={value}" for value in values[1:]])
            written += [option + value for value in values] or ([] if option == "tmpfs" else [option])
        pairs = [f"{a}:{b}" for a in written for b in written if a.split("=")[0] < b.split("=")[0] and "tmpfs" not in a + b]
        keys += [method, *(f"{method}:{options}" for options in written + pairs)]
    specs = parse_methods(",".join(keys))
    names = [folder_name(spec.key).lower() for spec in specs]
    assert len(set(names)) == len(names) > 50
    assert not any(character in name for name in names for character in ':/\\*?"<>|')
