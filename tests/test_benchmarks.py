"""The benchmark: reference, every peer's weights and results, statistics, tables and files."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from benchmarks import fit, plot, reference, report, runner, trace
from benchmarks.__main__ import main
from benchmarks.peers import PEERS, Peer, Program, Settings, Unavailable
from benchmarks.peers.gates import (
    cudnn_parameters,
    from_cudnn_parameters,
    joint_kernel,
    reorder,
    split_joint_kernel,
)
from benchmarks.problem import GRADIENTS, MODES, TOLERANCES, Mode, Problem
from benchmarks.shapes import SETS, Shape

SHAPE = Shape(3, 5, 4, 6)
SETTINGS = Settings(device="cpu", dtype="float32", threads=2)


def test_reference_gradients_agree_with_central_differences():
    problem = Problem.random(SHAPE, "float64")
    expected = problem.expected("train")
    rng = np.random.default_rng()
    names = ("x", "kernel", "recurrent_kernel", "bias")
    for name in names:
        arrays = {n: getattr(problem, n).copy() for n in names}
        direction = rng.standard_normal(arrays[name].shape)

        def loss(step: float, name=name, arrays=arrays, direction=direction) -> float:
            moved = {**arrays, name: arrays[name] + step * direction}
            return float(np.sum(reference.forward(**moved).output * problem.grad_output))

        slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert slope == pytest.approx(np.sum(expected[f"grad_{name}"] * direction), rel=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PEERS)
def test_peer_agrees_with_reference(name, mode):
    peer = PEERS[name]
    if reason := peer.unavailable(SETTINGS, mode):
        pytest.skip(reason)
    problem = Problem.random(SHAPE, "float32")
    program = peer.build(problem, mode, SETTINGS)
    try:
        results = program.results(program.run())
    finally:
        program.close()
    assert set(results) == {"output"} | (set(GRADIENTS) if mode == "train" else set())
    errors = problem.errors(mode, results)
    assert max(errors.values()) < TOLERANCES["float32"], errors


def test_gate_orders_are_inverted():
    rng = np.random.default_rng()
    kernel, recurrent = rng.standard_normal((4, 24)), rng.standard_normal((6, 24))
    bias = rng.standard_normal(24)
    assert np.array_equal(reorder(reorder(kernel, "iofc"), "ifco", "iofc"), kernel)
    joint = joint_kernel(kernel, recurrent, "icfo")
    assert joint.shape == (10, 24)
    assert np.array_equal(joint[:4, 6:12], kernel[:, 12:18])
    for got, given in zip(split_joint_kernel(joint, 4, "icfo"), (kernel, recurrent), strict=True):
        assert np.array_equal(got, given)
    flat = cudnn_parameters(kernel, recurrent, bias)
    assert flat.shape == (4 * 6 * (4 + 6 + 2),)
    for got, given in zip(
        from_cudnn_parameters(flat, 4, 6), (kernel, recurrent, bias), strict=True
    ):
        assert np.array_equal(got, given)


def test_shapes_are_read_and_refused():
    assert Shape.parse("1, 64,128,256") == Shape(1, 64, 128, 256)
    assert str(Shape(1, 64, 128, 256)) == "1,64,128,256"
    assert len(SETS["cpu"].shapes) == 6
    assert len(SETS["gpu"].shapes) == 8
    for text in ("1,2,3", "1,2,3,0", "1,2,3,x", "1,2,3,-4", ""):
        with pytest.raises(ValueError, match="B,T,I,H"):
            Shape.parse(text)


def test_errors_are_seen():
    problem = Problem.random(SHAPE, "float32")
    right = problem.expected("train")
    assert max(problem.errors("train", right).values()) == 0
    wrong = {**right, "grad_kernel": 1.01 * right["grad_kernel"]}
    assert problem.errors("train", wrong)["grad_kernel"] == pytest.approx(0.01)
    nan = {**right, "output": np.full_like(right["output"], np.nan)}
    assert problem.errors("train", nan)["output"] == float("inf")
    with pytest.raises(ValueError, match="grad_bias is missing"):
        problem.errors("train", {k: v for k, v in right.items() if k != "grad_bias"})
    with pytest.raises(ValueError, match="shape"):
        problem.errors("forward", {"output": right["output"][:1]})


def _fake_peers(monkeypatch: pytest.MonkeyPatch, **factors: float | Exception) -> list[Peer]:
    """Peers that give the right results times a factor, or raise."""

    def build(self: Peer, problem: Problem, mode: Mode, settings: Settings) -> Program:
        factor = factors[self.name]
        if isinstance(factor, Exception):
            raise factor
        results = {name: factor * value for name, value in problem.expected(mode).items()}
        return Program(run=lambda: results, results=lambda raw: raw)

    monkeypatch.setattr(Peer, "build", build)
    return [Peer(name, name.title(), "", ()) for name in factors]


def test_only_right_peers_are_timed(monkeypatch):
    peers = _fake_peers(
        monkeypatch,
        fused=1.0,
        other=1.0,
        wrong=1.001,
        broken=OSError("no\nway"),
        absent=Unavailable("not here"),
    )
    steps: list[str] = []
    measured = runner.measure(peers, [SHAPE], MODES, SETTINGS, seconds=0.01, progress=steps.append)
    assert len(steps) == runner.progress_steps(peers, [SHAPE], MODES)
    assert [(m.peer, m.mode) for m in measured] == [(p.name, m) for m in MODES for p in peers]
    by_peer = {m.peer: m for m in measured}
    for name in ("fused", "other"):
        m = by_peer[name]
        assert m.status == "ok"
        assert m.samples >= runner.ROUNDS == len(m.rounds)
        q = m.quantiles
        assert 0 < q["min"] <= q["p10"] <= q["p25"] <= q["median"] <= q["p75"] <= q["p90"]
    wrong = by_peer["wrong"]
    assert (wrong.status, wrong.samples) == ("wrong", 0)
    assert wrong.error == pytest.approx(0.001)
    assert (by_peer["broken"].status, by_peer["broken"].note) == ("failed", "OSError: no")
    assert (by_peer["absent"].status, by_peer["absent"].note) == ("unavailable", "not here")


def test_kernels_are_timed_by_the_programs_that_can(monkeypatch):
    expected = {}

    def build(self: Peer, problem: Problem, mode: Mode, settings: Settings) -> Program:
        expected.update(problem.expected(mode))
        seconds = (lambda calls: 0.002 * calls) if self.name == "fused" else None
        return Program(lambda: expected, lambda raw: raw, kernel_seconds=seconds)

    monkeypatch.setattr(Peer, "build", build)
    settings = dataclasses.replace(SETTINGS, clock="kernels")
    peers = [Peer(name, name.title(), "", ()) for name in ("fused", "other")]
    fused, other = runner.measure(peers, [SHAPE], ["forward"], settings, seconds=0.01)
    assert fused.median == pytest.approx(2.0)
    assert len(fused.rounds) == runner.ROUNDS
    assert other.status == "unavailable" and "kernels" in other.note
    assert "on the GPU alone" in report.Report.of([fused], settings).quantity()


def test_quantiles_are_in_milliseconds():
    found = runner.quantiles([0.001 * n for n in range(101)])
    assert found == pytest.approx(
        {"min": 0, "p10": 10, "p25": 25, "median": 50, "p75": 75, "p90": 90}
    )


def _measurement(peer: str, mode: Mode, median: float) -> runner.Measurement:
    times = runner.quantiles([median * scale / 1e3 for scale in (0.8, 0.9, 1.0, 1.1, 1.2)])
    return runner.Measurement(
        peer, peer.title(), str(SHAPE), mode, "ok", error=1e-7, samples=5, quantiles=times
    )


def _report() -> report.Report:
    return report.Report.of(
        [
            _measurement("fused", "forward", 2.0),
            _measurement("fused", "train", 5.0),
            _measurement("other", "forward", 3.0),
            runner.Measurement(
                "other", "Other", str(SHAPE), "train", "wrong", "grad_x is off by 1.0e+00", 1.0
            ),
            runner.Measurement("third", "Third", str(SHAPE), "forward", "unavailable", "no GPU"),
        ],
        SETTINGS,
    )


def test_report_is_read_back(tmp_path):
    written = _report()
    path = tmp_path / "report.json"
    written.write(path)
    assert report.Report.read(path) == written
    assert json.loads(path.read_text())["machine"]["versions"]["keras"]
    assert written.settings["threads"] == 2
    path.write_text("[]")
    with pytest.raises(ValueError, match="no benchmark report"):
        report.Report.read(path)


def test_peers_of_an_earlier_report_stand_beside():
    now = report.Report.of([_measurement("fused", "forward", 1.0)], SETTINGS)
    both = now.beside(_report())
    medians = {(m.peer, m.mode): m.median for m in both.measurements if m.status == "ok"}
    assert medians == {("fused", "forward"): 1.0, ("other", "forward"): 3.0}
    assert report.ratio(both.measurements[1], both.measurements) == pytest.approx(3.0)
    for elsewhere in (
        dataclasses.replace(_report(), settings={**_report().settings, "dtype": "float64"}),
        dataclasses.replace(_report(), machine={**_report().machine, "gpus": ["another"]}),
    ):
        with pytest.raises(ValueError, match="other"):
            now.beside(elsewhere)


def test_tables_hold_times_ratios_and_findings():
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(report.render(_report()))
    lines = console.export_text().splitlines()
    row = {line.split()[0]: line.split()[1:] for line in lines if line.strip()}
    assert row["Fused"] == ["2.000", "±10%", "1.00x", "5.000", "±10%", "1.00x", "1e-07"]
    assert row["Other"][:4] == ["3.000", "±10%", "1.50x", "wrong"]
    assert "Other: wrong at 3,5,4,6 train: grad_x is off by 1.0e+00" in lines
    assert "Third: no GPU" in lines


def test_plot_draws_what_was_timed(tmp_path):
    written = _report()
    report_path, picture = tmp_path / "report.json", tmp_path / "plot.svg"
    written.write(report_path)
    assert plot.main([str(report_path), str(picture)]) == 0
    assert picture.read_text().count("<svg") == 1
    empty = dataclasses.replace(written, measurements=written.measurements[-1:])
    with pytest.raises(ValueError, match="no time"):
        plot.plot(empty, picture)
    assert plot.main([str(tmp_path / "none.json"), str(picture)]) == 1


def test_trace_sums_events_and_busy_time():
    events = [
        trace.Event("MatMul", 0, 3000),
        trace.Event("Tanh", 2000, 2000),
        trace.Event("MatMul", 10_000, 1000),
    ]
    assert trace.busy_time(events) == 5000
    assert trace.summarize(events) == [trace.Line("MatMul", 2, 4.0), trace.Line("Tanh", 1, 2.0)]


def test_fused_call_is_one_op():
    found = trace.trace(PEERS["fused"], SHAPE, "train", SETTINGS)
    counts = {line.name: line.count for line in found.lines}
    assert counts["FusedLSTM"] == counts["FusedLSTMGrad"] == 1
    assert found.call > 0
    cell = trace.trace(PEERS["basic-cell"], SHAPE, "forward", SETTINGS)
    assert {line.name: line.count for line in cell.lines}["Sigmoid"] == 3 * SHAPE.steps


@pytest.mark.parametrize(
    "arguments",
    [
        ["--shape", "1,2"],
        ["--peers", "nobody"],
        ["--threads", "0"],
        ["--set", "none"],
        ["--kernels", "--peers", "fused,torch-graph"],
        ["--beside", "no-such-file"],
    ],
)
def test_command_line_refuses(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_fit_tells_a_step_from_an_epoch(monkeypatch):
    """With a clock of its own, and models that take 5 s an epoch and 2 or 3 a batch."""
    now = [0.0]

    class Model:
        def __init__(self, kind, shape):
            self.seconds = 2.0 if kind is fit.KINDS["FusedLSTM"] else 3.0

        def fit(self, x, y, batch_size, **_):
            now[0] += 5.0 + self.seconds * len(x) / batch_size

    monkeypatch.setattr(fit, "make_model", Model)
    monkeypatch.setattr(fit.time, "perf_counter", lambda: now[0])
    results = fit.measure(SHAPE, batches=4, rounds=2)
    assert results == {"Keras": pytest.approx((3.0, 5.0)), "FusedLSTM": pytest.approx((2.0, 5.0))}


def test_fit_prints_a_row_for_each_shape(capsys):
    fit.main(["--batches", "2", "--rounds", "1"], shapes=(SHAPE,))
    assert "3,5,4,6" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--batches", "1"], ["--rounds", "0"]])
def test_fit_refuses_too_few(arguments, capsys):
    with pytest.raises(SystemExit):
        fit.main(arguments)
    assert "must be at least 2" in capsys.readouterr().err
