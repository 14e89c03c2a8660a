"""The Ray executor on a real cluster of two nodes on this machine."""

import pandas as pd
import pytest
from toy_trial import MEASURED, TOY, decided, kills_its_process_on_a_small_mean, run, with_method

from assay._core.errors import InputError

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    memory = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **memory})
    cluster.add_node(num_cpus=1, object_store_memory=memory["object_store_memory"])
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


def node_of_this_process(given, seed):
    import ray

    return float(int(ray.get_runtime_context().get_node_id()[:8], 16))


def test_a_cluster_gives_the_same_table_as_this_machine(address, tmp_path):
    local = run(TOY, tmp_path / "local", jobs=1)
    remote = run(TOY, tmp_path / "ray", executor="ray", address=address)
    pd.testing.assert_frame_equal(decided(local), decided(remote), check_exact=True)


@pytest.mark.slow
def test_the_command_line_runs_on_the_cluster_what_it_runs_here(address, assay_process, tmp_path):
    options = ("judge-rank", "--cases", "3", "--seed", "5", "--json")
    local = assay_process("try", *options, "--out", "local")
    remote = assay_process("try", *options, "--out", "ray", "--executor", "ray", "--address", address)
    assert (local.returncode, remote.returncode) == (0, 0), local.stderr + remote.stderr
    tables = [pd.read_parquet(tmp_path / name / "cases.parquet") for name in ("local", "ray")]
    pd.testing.assert_frame_equal(*(table.drop(columns=MEASURED) for table in tables), check_exact=True)


def test_both_nodes_work(address, tmp_path):
    result = run(with_method(node_of_this_process), tmp_path, executor="ray", address=address, cases=12)
    assert result.to_frame().query("arm == 'mean'")["bias"].nunique() == 2


def test_a_case_that_kills_its_process_is_recorded(address, tmp_path):
    trial = with_method(kills_its_process_on_a_small_mean)
    result = run(trial, tmp_path, executor="ray", address=address, cases=4)
    assert {failure.error for failure in result.failures} == {"the worker process died"}


def test_a_cluster_without_enough_cpus_on_one_node_is_refused(address, tmp_path):
    with pytest.raises(InputError, match="use 2 threads, and the largest node of the Ray cluster has 1 CPUs"):
        run(with_method(len, threads=2), tmp_path, executor="ray", address=address)


@pytest.mark.parametrize("address", ["localhost:1", "ray://localhost:1", "localhost:first"])
def test_an_address_where_nobody_listens_is_refused_at_once(address, tmp_path):
    with pytest.raises(InputError, match=rf"^no Ray cluster can be used at {address} \(.*`ray start --head` printed$"):
        run(TOY, tmp_path, executor="ray", address=address)
