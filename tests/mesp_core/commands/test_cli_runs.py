"""Whole runs through the command line: tables, JSON lines, the progress line, and every way to end one early."""

import json
import os
import pty
import re
import resource
import signal
import subprocess

import pytest
from command_driver import ENDLESS, SMALL, gone, read_to_step

from mesp_core.adapters.adapter import load_adapter
from mesp_core.commands import cli
from mesp_core.runs import events


def processor_time_of_children():
    """Seconds used by all that were waited for, and by theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class TestCompare:
    def test_without_arguments_two_methods_learn_in_under_a_minute(self, mesp):
        before = processor_time_of_children()  # what else the machine does counts for nothing in it
        process = mesp("compare")
        assert process.returncode == 0, process.stderr
        assert processor_time_of_children() - before < 60
        [file] = mesp.cwd.glob("runs/*/results.json")
        results = json.loads(file.read_text())
        assert list(results["methods"]) == ["mebp", "mesp"]
        for method, result in results["methods"].items():
            assert len(result["steps"]) == 20
            assert result["summary"]["loss_end"] <= 0.9 * result["summary"]["loss_start"]
            tree, scale = load_adapter(file.parent / method / "adapter")
            assert len(tree) == 28 and scale == 2.0
        assert results["methods"]["mesp"]["summary"]["max_loss_difference"] <= 1e-5  # adamw at 1e-3 enlarges rounding
        assert sorted(path.name for path in file.parent.iterdir()) == ["mebp", "mesp", "results.json"]
        for text in ("s/step", "tokens/s", "allocator peak", "footprint peak", "training memory", "final loss"):
            assert text in process.stdout
        assert str(file.relative_to(mesp.cwd)) in process.stdout
        assert f"step 20/20  loss {results['methods']['mesp']['steps'][-1]['loss']:.4f}" in process.stdout

    def test_json_prints_events_and_summaries_and_nothing_else(self, mesp, strict_json):
        process = mesp("compare", "--json", *SMALL, "--steps", "3", "--methods", "mesp,mesp-store-h", "--out", "out")
        assert process.returncode == 0, process.stderr
        heard, summaries = [], []
        for line in process.stdout.splitlines():
            values = strict_json(line)
            if values["event"] == "summary":
                summaries.append(values)
            else:
                heard.append(events.parse_event(line))
        assert [s["method"] for s in summaries] == ["mesp", "mesp-store-h"]
        steps = [event for event in heard if isinstance(event, events.Step)]
        assert [(step.method, step.step) for step in steps] == [(s["method"], n) for s in summaries for n in (1, 2, 3)]
        assert (
            summaries[0]["final_loss"] == steps[2].loss and summaries[1]["max_loss_difference"] <= 1e-5
        )  # adamw at 1e-3 enlarges rounding
        stored = json.loads((mesp.cwd / "out" / "results.json").read_text())
        assert [step.to_dict() for step in steps[:3]] == stored["methods"]["mesp"]["steps"]

    def test_interleaved_the_steps_alternate(self, mesp):
        options = ["--steps", "2", "--methods", "mesp,mesp-store-h", "--interleave", "--out", "out"]
        process = mesp("compare", *SMALL, *options)
        assert process.returncode == 0, process.stderr
        stored = json.loads((mesp.cwd / "out" / "results.json").read_text())
        assert stored["config"]["interleave"] is True
        shown = [line.split("  ")[:2] for line in process.stdout.splitlines() if "  step " in line]
        assert shown == [[method, f"step {n}/2"] for n in (1, 2) for method in ("mesp", "mesp-store-h")]
        assert "results in out" in process.stdout

    def test_the_help_says_what_interleaving_costs(self, mesp):
        said = " ".join(mesp("compare", "--help").stdout.split())
        assert "--interleave" in said and "speed drifts" in said and "in memory at once" in said

    def test_options_of_a_method_get_a_folder_of_their_own(self, mesp):
        process = mesp("train", *SMALL, "--steps", "1", "--method", "mesp:weights=resident", "--out", "out")
        assert process.returncode == 0, process.stderr
        assert sorted(path.name for path in (mesp.cwd / "out").iterdir()) == ["mesp-weights=resident", "results.json"]

    @pytest.mark.parametrize(
        "start", [["train"], ["compare", "--interleave"]], ids=["of one method", "of each method in its turn"]
    )
    def test_on_a_terminal_there_is_a_progress_line(self, command, tmp_path, start):
        """One that is redrawn in place and gone at the end; results still go to stdout."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [*command[0], *start, *SMALL, "--steps", "30", "--out", str(tmp_path / "out")],
            env=command[1] | {"TERM": "xterm"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:  # how Linux says that the other side is closed
            pass
        os.close(ours)
        out = process.communicate()[0].decode()
        text = shown.decode()
        assert process.returncode == 0, text
        assert "loss" in text and "s/step" in text and "/30" in text and " MB" in text
        if "--interleave" in start:
            assert re.search(r"mebp [^\n]*/30[^\n]*loss[^\n]*\n[^\n]*mesp [^\n]*/30[^\n]*loss", text)  # one above the other
        assert "Traceback" not in text and "step 1/30" not in out
        assert "results in" in out


class TestEndings:
    def test_ctrl_c_stops_after_the_step_and_saves(self, started, strict_json, tmp_path):
        process = started("compare", "--json", *SMALL, *ENDLESS, "--methods", "mesp,mebp", "--out", "out")
        _, workers = read_to_step(process, 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err and "Ctrl-C again" in err
        heard = [events.parse_event(line) for line in out.splitlines() if strict_json(line)["event"] != "summary"]
        [done] = [event for event in heard if isinstance(event, events.Done)]
        assert (done.method, done.outcome) == ("mesp", "stopped") and done.steps >= 3
        assert {event.method for event in heard} == {"mesp"}
        load_adapter(tmp_path / "out" / "mesp" / "adapter")
        stored = json.loads((tmp_path / "out" / "results.json").read_text())
        assert stored["methods"]["mesp"]["outcome"]["kind"] == "stopped"
        assert len(stored["methods"]["mesp"]["steps"]) == done.steps
        assert gone(workers)

    def test_ctrl_c_ends_all_that_take_turns(self, started, tmp_path):
        process = started("compare", "--json", *SMALL, *ENDLESS, "--interleave", "--out", "out")
        _, workers = read_to_step(process, 3, alive=2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0 and "Traceback" not in err, err
        assert gone(workers)
        stored = json.loads((tmp_path / "out" / "results.json").read_text())["methods"]
        assert [stored[method]["outcome"]["kind"] for method in ("mebp", "mesp")] == ["stopped", "stopped"]
        assert 0 <= len(stored["mebp"]["steps"]) - len(stored["mesp"]["steps"]) <= 1
        for method in stored:
            load_adapter(tmp_path / "out" / method / "adapter")

    def test_ctrl_c_twice_ends_at_once(self, started, tmp_path):
        process = started("train", "--json", *SMALL, *ENDLESS, "--out", "out")
        _, [worker] = read_to_step(process, 2)
        worker.suspend()  # so that the first one cannot be obeyed
        process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1 and "ended at once, as asked" in err and "Traceback" not in err
        assert gone([worker])
        assert not (tmp_path / "out" / "mesp").exists()

    @pytest.mark.parametrize("methods", [["mesp"], ["mebp", "mesp"]], ids=["alone", "in turn"])
    def test_a_command_line_that_is_killed_takes_its_workers_along(self, started, tmp_path, methods):
        """They notice that nobody listens, save what was learnt and end."""
        in_turn = ["--interleave"] if len(methods) > 1 else []
        process = started("compare", "--json", *SMALL, *ENDLESS, *in_turn, "--methods", ",".join(methods), "--out", "out")
        _, workers = read_to_step(process, 2, alive=len(methods))
        process.kill()
        process.communicate()
        assert gone(workers)
        for method in methods:
            load_adapter(tmp_path / "out" / method / "adapter")

    def test_a_reader_that_leaves(self, started, tmp_path):
        """As with `| head -1`: the run goes on to its end, and what nobody reads is not written."""
        process = started("train", "--json", *SMALL, "--steps", "8", "--out", "out")
        _, workers = read_to_step(process, 1)
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait(timeout=60) == 0
        assert gone(workers)
        stored = json.loads((tmp_path / "out" / "results.json").read_text())["methods"]["mesp"]
        assert stored["outcome"]["kind"] == "finished" and len(stored["steps"]) == 8
        load_adapter(tmp_path / "out" / "mesp" / "adapter")

    def test_ctrl_c_between_the_start_and_the_first_worker(self, monkeypatch, capsys, tmp_path):
        """Nothing was run, so nothing is wrong and nothing is left."""
        from mesp_core.runs import comparison

        class InterruptedSession(comparison.Session):
            def __init__(self, *arguments, **options):
                super().__init__(*arguments, **options)
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(comparison, "Session", InterruptedSession)
        code = cli.main(["train", *SMALL, "--steps", "2", "--out", str(tmp_path / "out")])
        said = capsys.readouterr().err
        assert "unexpected" not in said and code in (0, 1), said
        assert not (tmp_path / "out").exists()
