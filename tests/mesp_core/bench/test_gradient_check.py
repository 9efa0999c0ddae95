"""`mesp check`: right gradients pass, and every kind of wrong one is found."""

import json
from dataclasses import replace

import pytest

SMALL = ["--seq-len", "32", "--rank", "4"]


class TestCheck:
    @pytest.fixture
    def results(self, strict_json):
        """results(process) -> the objects it printed."""
        return lambda process: [strict_json(line) for line in process.stdout.splitlines()]

    @pytest.mark.parametrize("batch", [[], ["--batch-size", "2"]], ids=["one sample", "two, one of them padded"])
    def test_the_gradients_of_tiny_are_right(self, mesp, results, batch):
        process = mesp("check", "--json", *SMALL, *batch)
        assert process.returncode == 0, process.stderr
        checked = results(process)
        assert [result["method"] for result in checked] == ["mebp", "mesp", "mesp-store-h", "lean"]
        for result in checked:
            assert result["event"] == "check" and result["ok"] is True and result["dtype"] == "float32"
            assert result["tensors"] == 56
            # all but exact, yet computed in another way
            assert 0 < result["gradient_difference"] <= 1e-5 and 0 < result["worst_tensor_difference"] <= 5e-5
            assert result["loss_difference"] <= 2e-6
        assert list(mesp.cwd.iterdir()) == []

    def test_a_wrong_gradient_is_found(self, mesp, results, tmp_path):
        """A thousandth too much in one op: mebp differentiates the forward and does not use it in its blocks."""
        plant = """
import sys
if "mesp_core.bench.gradient_check" in getattr(sys, "orig_argv", []):
    from mesp_core.ops import rms_norm
    right = rms_norm.backward
    rms_norm.backward = lambda g, x, w, eps: right(g, x, w, eps) * (1.001 if g.shape == x.shape else 1)
"""
        (tmp_path / "sitecustomize.py").write_text(plant)
        process = mesp("check", "--json", *SMALL, "--methods", "mesp", python_path=tmp_path)
        [result] = results(process)
        assert process.returncode == 1 and result["ok"] is False
        assert 1e-4 < result["gradient_difference"] < 1e-1
        process = mesp("check", *SMALL, "--methods", "mesp", python_path=tmp_path)
        assert process.returncode == 1 and "OUT OF BOUNDS" in process.stdout

    @pytest.fixture
    def compute(self, small_config, monkeypatch):
        """compute(damage, **changes) -> mesp's check result where `damage` was shown each block's gradients."""
        from mesp_core.bench import gradient_check as check
        from mesp_core.methods.registry import METHODS
        from mesp_core.runs.prepare import prepare

        def run(damage=lambda gradients: None, **changes):
            config = small_config(**{"seq_len": 16} | changes)
            prepared = prepare(config)
            request = {
                "config": config.to_dict(),
                "methods": ["mesp"],
                "model_folder": str(prepared.source.path),
                "tokens_folder": str(prepared.tokens.path),
            }
            mesp = METHODS["mesp"]
            right = mesp.kind.backward()

            def wrong(*arguments):
                dx, gradients = right(*arguments)
                damage(gradients)
                return dx, gradients

            monkeypatch.setitem(METHODS, "mesp", replace(mesp, kind=replace(mesp.kind, backward=lambda: wrong)))
            [result] = check._compute(request)
            return result

        return run

    def test_every_tensor_is_checked_on_a_signal(self, compute):
        """With B = 0, as adapters begin, every ∂A would be 0 and half the backward unchecked."""
        norms = []
        result = compute(lambda gradients: norms.extend(g.square().sum().item() for p in gradients.values() for g in p))
        assert result.ok and len(norms) == result.tensors == 56 and min(norms) > 0

    def test_several_samples_are_checked_with_padding(self, compute, monkeypatch):
        from mesp_core.engine.blockwise import Blockwise

        seen, right = [], Blockwise.loss_and_gradients

        def watched(self, adapters, batch, weight, *rest):
            seen.append((batch, weight))
            return right(self, adapters, batch, weight, *rest)

        monkeypatch.setattr(Blockwise, "loss_and_gradients", watched)
        assert compute(batch_size=3).ok
        [(batch, weight)] = seen
        assert batch.inputs.shape == batch.labels.shape == (3, 16)
        labelled = (batch.labels >= 0).sum(axis=1)
        assert 0 < labelled[2] <= 10 and (batch.labels[2, 10:] < 0).all()
        assert batch.tokens == labelled.sum() and weight == pytest.approx(1 / batch.tokens)

    def test_one_wrong_tensor_is_found_and_named(self, compute):
        layers = iter(range(3, -1, -1))

        def damage(gradients):
            if next(layers) == 2:
                da, db = gradients["up_proj"]
                gradients["up_proj"] = (da, db * 1.0002)

        result = compute(damage)
        assert not result.ok
        assert result.worst_tensor == "model.layers.2.mlp.up_proj.lora_b"
        assert result.worst_tensor_difference == pytest.approx(2e-4, rel=0.05)

    def test_a_gradient_that_is_no_number_is_found(self, compute):
        def damage(gradients):
            da, db = gradients["q_proj"]
            gradients["q_proj"] = (da * float("nan"), db)

        result = compute(damage)
        assert not result.ok and "q_proj.lora_a" in result.worst_tensor

    def test_a_tensor_left_out_is_found(self, compute):
        assert not compute(lambda gradients: gradients.pop("k_proj")).ok

    def test_a_result_that_is_no_number_is_json(self, compute, strict_json):
        def damage(gradients):
            da, db = gradients["q_proj"]
            gradients["q_proj"] = (da * float("nan"), db)

        strict_json(json.dumps(compute(damage).to_dict()))
