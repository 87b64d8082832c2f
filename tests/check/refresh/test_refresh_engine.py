"""Where a refresh measures: on the engine that was named, and against the anchor of the nodes that it gives."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from regbot.baselines import Store
from regbot.check.refresh import flow
from regbot.engines import Engine, LocalEngine, Needs, Seat
from support.refresh_cases import refreshed
from support.timed_builder import NODE

OTHER = NODE.model_copy(update={"node_class": "8x another GPU"})


class Nodes(LocalEngine):
    """An engine that, as a cluster's, says what its nodes are only to whoever has a seat."""

    def __init__(self, node: Any = NODE) -> None:
        super().__init__()
        self.node, self.seats, self.closed = node, list[Needs](), False

    def describe(self, needs: Needs) -> Any:
        return self.node if self.seats else None

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        self.seats.append(needs)
        yield cast(Seat, self)


def opening(engine: Engine, named: list[str]) -> Callable[..., Any]:
    @contextmanager
    def opened(name: str, *_: object, **__: object) -> Iterator[Engine]:
        named.append(name)
        yield engine

    return opened


def test_the_class_of_the_nodes_is_asked_of_a_seat_where_nothing_else_tells_it(tmp_path: Path) -> None:
    root, engine = tmp_path / "baselines", Nodes()
    with patch.object(flow, "open_engine", opening(engine, [])):
        first = refreshed(root, tmp_path, engine="slurm")
        again = refreshed(root, tmp_path, 1, engine="slurm")
    assert [needs.name for needs in engine.seats] == ["regbot qwen3-30b-a3b@1/ep"]
    assert [each.workloads[0].anchor for each in (first, again)] == [None, first.commit]


def test_a_night_on_other_nodes_than_the_anchors_is_not_stored(tmp_path: Path) -> None:
    root, engine = tmp_path / "baselines", Nodes(OTHER)
    with patch.object(flow, "open_engine", opening(engine, [])):
        result = refreshed(root, tmp_path, engine="slurm")
    assert result.status == "INVALID"
    assert "it was timed on " + NODE.node_class in result.warnings[0]
    assert "another GPU" in result.warnings[0]
    assert list(Store(root).class_folders()) == []


@pytest.mark.parametrize("no_sandbox", [False, True])
def test_a_refresh_measures_in_a_sandbox_unless_none_is_asked_for(tmp_path: Path, no_sandbox: bool) -> None:
    with patch.object(flow, "open_engine", side_effect=opening(Nodes(), [])) as opened:
        refreshed(tmp_path / "baselines", tmp_path, no_sandbox=no_sandbox)
    given = opened.call_args.kwargs
    assert (given["untrusted"], given["no_sandbox"]) == (True, no_sandbox)
