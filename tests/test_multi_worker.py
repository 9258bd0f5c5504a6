"""MultiWorkerMirroredStrategy: two processes on the loopback device train to one's weights."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter

import multi_worker
import numpy as np
import pytest
from processes import run_together

WORKERS = 2


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    finally:
        for s in sockets:
            s.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What one process alone and each worker saved, in this order."""
    folder = tmp_path_factory.mktemp("workers")
    cluster = {"worker": free_addresses(WORKERS)}
    environs: list[dict[str, str | None]] = [{"TF_CONFIG": None}]
    for index in range(WORKERS):
        task = {"type": "worker", "index": index}
        environs.append({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})
    paths = [folder / f"{i}.npz" for i in range(len(environs))]
    commands = [[multi_worker.__file__, str(path)] for path in paths]
    run_together(commands, environs, folder, timeout=multi_worker.SECONDS)
    return [np.load(path) for path in paths]


def test_multi_worker_strategy_trains_to_the_weights_of_one_process(trained):
    alone, *workers = trained
    assert [int(t["replicas"]) for t in trained] == [1, WORKERS, WORKERS]
    assert np.abs(alone["after"] - alone["before"]).max() > 0.01
    for worker in workers:
        np.testing.assert_array_equal(worker["before"], alone["before"])
        np.testing.assert_allclose(worker["after"], alone["after"], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(worker["after"], workers[0]["after"])


def test_multi_worker_strategy_gives_each_worker_its_share(trained):
    """Each trains on other rows; the mean of their losses is that of the whole batch."""
    alone, *workers = (t["losses"] for t in trained)
    assert np.all(workers[0] != workers[1])
    np.testing.assert_allclose(np.mean(workers, axis=0), alone, rtol=1e-4)


def test_multi_worker_strategy_runs_the_op(trained):
    for results in trained:
        counts = Counter(results["op_types"].tolist())
        assert counts["FusedLSTM"] == counts["FusedLSTMGrad"] == 2  # Bidirectional is one
        assert ("CollectiveReduceV2" in counts) == (results["replicas"] > 1)
        assert not {"While", "StatelessWhile"} & set(counts)


def test_programs_that_fail_or_hang_are_reported_and_ended(tmp_path):
    begin = time.monotonic()
    commands = [["-c", "raise SystemExit('broken')"], ["-c", "import time; time.sleep(100)"]]
    for pick, message in (([0, 1], "ended with 1:\nbroken"), ([1, 1], "1 was killed")):
        with pytest.raises(pytest.fail.Exception, match=message):
            run_together([commands[i] for i in pick], [{}, {}], tmp_path, timeout=3)
    assert time.monotonic() - begin < 50
