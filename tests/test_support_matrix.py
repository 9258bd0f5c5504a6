"""Every cell of the README's support matrix, and the matrix itself."""

from __future__ import annotations

import json
import sys

import pytest
import support_checks
import support_matrix
from processes import run_together

CELLS = [
    pytest.param(
        name, row.check, id=f"{name}-{row.check}",
        marks=pytest.mark.gpu if table.columns[name].device == "GPU" else (),
    )
    for table in support_matrix.TABLES
    for name, row in table.cells()
]  # fmt: skip


@pytest.fixture(scope="module")
def of_tf_keras(tmp_path_factory):
    """What the checks of the columns of the other Keras raised, in a process of its own."""
    folder = tmp_path_factory.mktemp("tf_keras")
    columns = [n for t in support_matrix.TABLES for n, c in t.columns.items() if c.tf_keras]
    command = [support_matrix.__file__, "--json", str(folder / "results.json"), "--run", *columns]
    run_together([command], [{"TF_USE_LEGACY_KERAS": "1"}], folder, timeout=300)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(("name", "check"), CELLS)
def test_cell(request, name, check):
    if support_matrix.column_of(name)[1].tf_keras:
        failure = request.getfixturevalue("of_tf_keras")[name][check]
        assert failure is None, failure
    else:
        support_matrix.run_cell(name, check)


def test_readme_has_the_matrix():
    assert support_matrix.in_readme() == support_matrix.render(), (
        "run: python tests/support_matrix.py --write"
    )


def test_every_check_stands_behind_a_cell():
    used = {row.check for table in support_matrix.TABLES for row in table.rows}
    taking_a_place = {
        name
        for name, value in vars(support_checks).items()
        if getattr(value, "__annotations__", {}).get("place") == "Place"
        and not name.startswith(("_", "check_"))
    }
    assert taking_a_place == used


def test_unrecorded_device_is_not_claimed(monkeypatch):
    monkeypatch.setattr(support_matrix, "recorded", dict)
    table = support_matrix.TABLES[0]
    for row in table.rows:
        for name, column in table.columns.items():
            cell = support_matrix._cell(name, column, row)
            assert cell in ("", support_matrix.NOT_RUN if column.device == "GPU" else row.says)


@pytest.mark.parametrize("broken", ["place", "value", "path"])
def test_checks_fail_where_a_cell_is_not_true(monkeypatch, broken):
    """A layer with wrong values, on Keras's path, or elsewhere is no support."""
    kind = support_checks.tfl.FusedLSTM
    place = support_checks.Place("GPU" if broken == "place" else "CPU")
    if broken == "value":
        call = kind._call_op
        monkeypatch.setattr(kind, call.__name__, lambda *a, **k: _scaled(call(*a, **k)))
    elif broken == "path":
        monkeypatch.setattr(kind, "_can_run_op", lambda *_: False)
    elif "gpu" in [d.device_type.lower() for d in support_checks.tf.config.list_physical_devices()]:
        pytest.skip("there is a GPU")
    with pytest.raises(AssertionError):
        support_checks.full_precision(place)


def _scaled(outputs):
    return support_checks.tf.nest.map_structure(lambda v: v * 1.001, outputs)


def test_program_finds_a_readme_that_differs(monkeypatch, tmp_path):
    readme = tmp_path / "README.md"
    monkeypatch.setattr(support_matrix, "README", readme)
    monkeypatch.setattr(sys, "argv", ["support_matrix.py"])
    readme.write_text(f"before\n{support_matrix.BEGIN}\n| no |\n{support_matrix.END}\nafter\n")
    assert support_matrix.main() == 1
    support_matrix.write()
    assert support_matrix.main() == 0
    assert readme.read_text().startswith("before\n") and readme.read_text().endswith("after\n")
