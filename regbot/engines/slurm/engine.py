"""The engine ``slurm``: a reservation for each session, and its runs as steps inside it."""

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path

from regbot.config import SlurmSettings
from regbot.engines.engine import Ended, Launch, Needs, NoSeatError, Seat, SeatLostError
from regbot.engines.sandbox import Sandbox
from regbot.engines.slurm.commands import Slurm
from regbot.engines.slurm.limits import Extent, Partition, extent_of, partition_of, usable
from regbot.engines.slurm.reservation import Reservation
from regbot.engines.slurm.seat import SlurmSeat
from regbot.engines.slurm.shared import SharedSeat
from regbot.records.files import write_text
from regbot.records.run import Node


class SlurmEngine:
    """Seats are jobs of one partition. A context: what it reserved is given back when it is left.

    ``folder`` lies on the file system that all nodes share, as the checkouts and the results must. ``refused`` names
    hosts that are not to be used now, such as those in quarantine.
    """

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        folder: Path,
        slurm: Slurm | None = None,
        refused: Callable[[], frozenset[str]] = frozenset,
        say: Callable[[str], None] = lambda _: None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._settings, self._folder, self._refused, self._say = settings, folder, refused, say
        self.sandbox = sandbox
        self._slurm = slurm or Slurm()
        self._free = threading.BoundedSemaphore(settings.slots)
        self._beside = SharedSeat(self._reserve_beside)
        self._held: set[Reservation] = set()

    def __enter__(self) -> "SlurmEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.close()
        for reservation in list(self._held):  # of threads that wait for nodes: an interrupt does not wait for them
            self._give_back(reservation)

    @property
    def slots(self) -> int:
        return self._settings.slots

    @property
    def gpus(self) -> int:
        """Most that a seat may have: all of the partition's nodes together."""
        each = self._settings.gpus_per_node
        return (self._partition.gpus if each is None else each) * len(self._partition.nodes)

    def run(self, launch: Launch) -> Ended:
        """Run ``launch`` beside others on one node, in a reservation without GPUs that is made when first needed."""
        try:
            return self._beside.run(launch)
        except SeatLostError:  # once more on another node
            return self._beside.run(launch)

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        """Wait for a slot and for nodes, and have them until the context is left. Raises NoSeatError."""
        extent = self._extent(needs)
        with self._free:
            self._beside.close_if_idle()  # its node may be the very one that is waited for
            with self._reserved(needs, extent) as seat:
                self._remember(extent, seat.node)
                yield seat

    def describe(self, needs: Needs) -> Node | None:
        """The nodes of the last such seat. Raises NoSeatError where there can be none."""
        try:
            return Node.model_validate_json(self._last(self._extent(needs)).read_bytes())
        except (OSError, ValueError):
            return None

    def kind(self, needs: Needs) -> tuple[str, ...]:
        """Partition, what is asked of it, and the layout. Raises NoSeatError."""
        extent, settings = self._extent(needs), self._settings
        return self._partition.name, settings.constraint, settings.reservation, f"{extent.nodes} x {extent.gpus}"

    def _extent(self, needs: Needs) -> Extent:
        return extent_of(needs, self._settings, self._partition)

    def _last(self, extent: Extent) -> Path:
        """The file that remembers what the last seat of this layout was, of nodes that were asked for like this."""
        asked = hashlib.sha256(f"{self._settings.constraint}\n{self._settings.reservation}".encode()).hexdigest()[:12]
        return self._folder / "classes" / f"{self._partition.name}.{extent.nodes}x{extent.gpus}.{asked}.json"

    def _remember(self, extent: Extent, node: Node) -> None:
        write_text(self._last(extent), json.dumps(node.model_dump()))

    @contextmanager
    def _reserved(self, needs: Needs, extent: Extent) -> Iterator[Seat]:
        settings = self._settings
        if refused := self._refused() & frozenset(self._partition.nodes):
            left = usable(self._slurm, self._partition.nodes, refused | set(settings.exclude))
            if len(left) < extent.nodes:
                raise NoSeatError(
                    f"{needs.name}: wants {extent.nodes} nodes, and {len(left)} of partition {self._partition.name} "
                    f"are left: {', '.join(sorted(refused))} in quarantine ('regbot node list' says why)"
                )
            settings = settings.model_copy(update={"exclude": sorted(refused | set(settings.exclude))})
        folder = self._folder / f"seat-{secrets.token_hex(6)}"
        reservation = Reservation(self._slurm, settings, self._partition, extent, needs, folder)
        self._held.add(reservation)
        try:
            reservation.submit()
            reservation.wait(self._say)
            yield SlurmSeat(self._slurm, settings, reservation, self.sandbox)
        finally:
            self._give_back(reservation)

    def _give_back(self, reservation: Reservation) -> None:
        try:
            reservation.release()
        except NoSeatError as error:  # what ran there has run
            self._say(str(error))
        self._held.discard(reservation)

    def _reserve_beside(self) -> AbstractContextManager[Seat]:
        return self._reserved(Needs(ranks=0, name="regbot traces", shared=True), Extent(1, 0, 0))

    @cached_property
    def _partition(self) -> Partition:
        return partition_of(self._slurm, self._settings.partition)
