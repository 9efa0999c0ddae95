"""How long a step takes: what makes it longer, what makes it shorter, and on which machine."""

import dataclasses

import pytest

from mesp_core.lifetimes.keep import Keep
from mesp_core.machine.recorded import names, recorded
from mesp_core.methods.names import parse_method
from mesp_core.models.checkpoint import open_checkpoint
from mesp_core.models.synthetic import GEOMETRIES, write_checkpoint
from mesp_core.planner import cost, dispatch, plan
from mesp_core.planner.cost import Cost
from mesp_core.planner.plans import sizes_of
from mesp_core.planner.step_work import StepWork
from mesp_core.planner.work import Work
from mesp_core.settings.run_config import RunConfig

METHODS = ("autodiff", "mebp", "mesp", "mesp-store-h", "lean")
SMALL = GEOMETRIES["qwen2.5-0.5b"] | {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 2048,
    "vocab_size": 500,
}
CPU = recorded("cpu2", "float32")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Of one, two and four blocks."""
    root = tmp_path_factory.mktemp("models")
    found = {}
    for layers in (1, 2, 4):
        write_checkpoint(root / str(layers), SMALL | {"num_hidden_layers": layers})
        found[layers] = open_checkpoint(root / str(layers))
    return found


def config_of(method, **changes):
    return RunConfig(method=method, **{"seq_len": 64, "optimizer": "sgd", "dtype": "float32"} | changes)


def seconds(checkpoint, method, machine=CPU, **changes):
    return plan(config_of(method, **changes), checkpoint, machine=machine).step_time_s


def work(checkpoint, method, keep=None, inputs="memory", **changes):
    config = config_of(method, **changes)
    return StepWork(config, parse_method(method), sizes_of(config, checkpoint)).work(keep, inputs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("machine", ["cpu2", "m1", "m4max"])
def test_it_grows_with_tokens_blocks_rank_and_batches(method, machine, checkpoints):
    machine = recorded(machine, "float32")
    base = seconds(checkpoints[2], method, machine)
    for changes in ({"seq_len": 512}, {"batch_size": 4}, {"rank": 64}, {"grad_accumulation": 2}):
        assert seconds(checkpoints[2], method, machine, **changes) > base, changes
    one, two, four = (seconds(checkpoints[layers], method, machine) for layers in (1, 2, 4))
    assert one < two < four
    # Every block takes as long as another, and the loss is once.
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)


def test_what_is_kept_lowers_it_and_each_thing_saves_something(checkpoints):
    s = sizes_of(config_of("lean"), checkpoints[2])
    of_lean = Cost(StepWork(config_of("lean"), parse_method("lean"), s), CPU)
    nothing = of_lean.seconds(Keep(2), "memory")
    for what in ("attention", "gate", "up", "sigma"):
        assert of_lean.seconds(dataclasses.replace(Keep(2), **{what: 1}), "memory") < nothing
    assert all(saved > 0 for saved in of_lean.saved.values())
    assert of_lean.saved["attention"] > of_lean.saved["sigma"]
    assert of_lean.seconds(Keep(2, part_elements=458_752), "memory") < nothing


def test_block_inputs_on_disk_cost_what_is_written_and_read(checkpoints):
    held, gone = (work(checkpoints[2], "lean", Keep(2), where) for where in ("memory", "disk"))
    assert gone.disk_bytes - held.disk_bytes == 2 * 2 * 64 * 256 * 4
    assert dataclasses.replace(gone, disk_bytes=0) == held


@pytest.mark.parametrize("method", ["mebp", "mesp", "lean"])
def test_every_block_is_multiplied_at_least_three_times(method, checkpoints):
    """Forward, again, and backward: nobody can do with less but by keeping, and mesp spares only down's second forward."""
    keep = Keep(2) if method == "lean" else None
    difference = [work(checkpoints[n], method, keep and Keep(n)) for n in (1, 2)]
    multiplied = sum(w.products * sign + w.narrow_products * sign for w, sign in zip(difference, (-1, 1), strict=True))
    entries = (entry for path, entry in checkpoints[2].linears.items() if path.startswith("model.layers.0."))
    block = sum(entry.out_features * entry.in_features for entry in entries)
    assert 2.7 * 64 * block <= multiplied <= 3.3 * 64 * block


def test_the_quantised_kernel_dequantises_nothing(checkpoints):
    counted = work(checkpoints[2], "mesp", kernel="quantized")
    assert counted.dequantized == 0 and counted.quantized_forward > 0 and counted.quantized_backward > 0
    assert work(checkpoints[2], "mesp", kernel="dequantize").quantized_forward == 0


def test_h_that_is_kept_saves_a_product(checkpoints):
    kept, again = (work(checkpoints[2], method) for method in ("mesp-store-h", "mesp"))
    assert kept.thin_float_products < again.thin_float_products


def test_resident_weights_are_read_from_no_file(checkpoints):
    assert work(checkpoints[2], "mesp").file_bytes > 0
    config = config_of("mesp:weights=resident")
    sizes = sizes_of(config, checkpoints[2], streamed=False)
    assert StepWork(config, parse_method(config.method), sizes).work(None, "memory").file_bytes == 0


class TestOnAMachine:
    WORK = Work(products=1e9, file_bytes=1e9, kernels=1000, pieces=100, drains=10)

    def test_a_gpu_works_while_files_are_read_and_a_cpu_does_not(self):
        gpu = dataclasses.replace(CPU, gpu=True)
        both, device, files = (
            cost.seconds(w, CPU) for w in (Work(products=1e9, file_bytes=1e9), Work(products=1e9), Work(file_bytes=1e9))
        )
        assert both == pytest.approx(device + files)
        assert cost.seconds(Work(products=1e9, file_bytes=1e9), gpu) == pytest.approx(max(device, files))

    @pytest.mark.parametrize("figure, count", [("wait_s", 10), ("submit_s", 100), ("launch_s", 1000)])
    def test_each_call_costs(self, figure, count):
        slower = dataclasses.replace(CPU, **{figure: getattr(CPU, figure) + 1e-3})
        assert cost.seconds(self.WORK, slower) - cost.seconds(self.WORK, CPU) == pytest.approx(count * 1e-3)

    def test_every_kind_of_work_has_its_rate(self):
        """A kind that no machine has a rate for would be done in no time."""
        called = {"kernels", "pieces", "drains", "file_bytes", "disk_bytes"}
        assert {field.name for field in dataclasses.fields(Work)} == called | set(cost.RATES)
        for kind in cost.RATES:
            assert cost.seconds(Work(**{kind: getattr(CPU, kind)}), CPU) == pytest.approx(1)

    def test_more_powerful_chips_are_faster(self, checkpoints):
        times = [
            seconds(checkpoints[2], "mebp", recorded(name, "bfloat16")) for name in ("m1", "m2", "m4", "m4pro", "m4max")
        ]
        assert times == sorted(times, reverse=True)

    def test_the_faster_the_chip_the_more_leans_waiting_counts(self, checkpoints):
        ratios = []
        for name in ("m1", "m4max"):
            machine = recorded(name, "float32")
            ratios.append(seconds(checkpoints[2], "lean", machine) / seconds(checkpoints[2], "mebp", machine))
        assert 1 < ratios[0] < ratios[1]

    @pytest.mark.parametrize("name", names())
    def test_every_recorded_machine_can_be_planned_for(self, name, checkpoints):
        assert all(seconds(checkpoints[1], method, recorded(name, "float32")) > 0 for method in METHODS)


def test_the_device_is_called_as_often_as_was_counted(tmp_path):
    """0.5B geometry, 256 tokens, bfloat16, quantised kernel: drains and kernels a block, forward and backward together."""
    write_checkpoint(tmp_path / "model", GEOMETRIES["qwen2.5-0.5b"] | {"num_hidden_layers": 1, "vocab_size": 500})
    changes = {"seq_len": 256, "dtype": "bfloat16", "adapter_dtype": "bfloat16", "kernel": "quantized"}
    s = sizes_of(config_of("lean", **changes), open_checkpoint(tmp_path / "model"))
    counted = {"lean": (216, 1540), "mesp": (46, 825), "mebp": (5, 412)}
    found = {"lean": dispatch.lean(s, Keep(1), 0), "mesp": dispatch.mesp(s), "mebp": dispatch.mebp(s)}
    for method, (drains, kernels) in counted.items():
        assert found[method].drains == pytest.approx(drains, rel=0.08), method
        assert found[method].kernels == pytest.approx(kernels, rel=0.08), method
