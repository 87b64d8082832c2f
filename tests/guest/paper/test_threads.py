"""The paper GPU with several threads and forked processes at once."""

from pathlib import Path

from support.paper_runs import read_answer


def test_threads_count_and_compute_while_a_data_loader_forks(paper_library: Path) -> None:
    assert read_answer(paper_library, "threads.py") == {
        "loaded": [140, 140, 140],
        "gradients": [True],
        "launches": 0,
        "live": 0,
    }
