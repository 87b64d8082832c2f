"""The engine ``slurm``: it reserves nodes for each session, and starts the session's runs on them."""

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from regbot.engines.engine import Needs, Seat
from regbot.engines.launch import Launch, LaunchResult, NoSeatError, SeatLostError
from regbot.engines.slurm.commands import Partition, Slurm, find_partition
from regbot.engines.slurm.reservation import Reservation, SeatLayout, plan_layout
from regbot.engines.slurm.seat import SlurmSeat
from regbot.records.config import SandboxSettings, SlurmSettings
from regbot.records.files import write_text
from regbot.records.run import Node


class SlurmEngine:
    """Engine whose seats are jobs in one partition. On exit it releases all. Each timed session has a seat of its own.
    The traces of all sessions share one. ``folder`` must be on a file system that all nodes share."""

    name = "slurm"

    def __init__(
        self,
        settings: SlurmSettings,
        folder: Path,
        slurm: Slurm | None = None,
        say: Callable[[str], None] = lambda _: None,
        sandbox: SandboxSettings | None = None,
    ) -> None:
        self._settings, self._folder, self._say = settings, folder, say
        self.sandbox = sandbox
        self._slurm = slurm or Slurm()
        self._trace_lock = threading.Lock()
        self._trace_seat: Seat | None = None
        self._trace_stack = ExitStack()
        """Releases the trace seat."""
        self._reservations: set[Reservation] = set()

    def __enter__(self) -> "SlurmEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self._trace_stack.close()
        # Other threads may still wait for nodes, for example after an interrupt. Releasing ends their wait.
        for reservation in list(self._reservations):
            self._release(reservation)

    @property
    def gpus(self) -> int:
        per_node = self._settings.gpus_per_node
        return (self._partition.gpus if per_node is None else per_node) * len(self._partition.addresses)

    def run(self, launch: Launch) -> LaunchResult:
        """Run an untimed ``launch`` on the trace node, which the first call reserves. Raises EngineError."""
        seat = self._reserve_trace_seat()
        try:
            return seat.run(launch)
        except SeatLostError:  # retry once on another node
            return self._reserve_trace_seat(lost=seat).run(launch)

    @contextmanager
    def seat(self, needs: Needs) -> Iterator[Seat]:
        layout = self._layout(needs)
        self._release_trace_seat()  # the new seat may need its node, and no trace runs while a session is timed
        with self._reserve_seat(needs, layout) as seat:
            write_text(self._node_file(layout), seat.node.model_dump_json())
            yield seat

    def describe(self, needs: Needs) -> Node | None:
        """Return the node of the last seat with the same layout; None without one. Raises NoSeatError."""
        try:
            return Node.model_validate_json(self._node_file(self._layout(needs)).read_bytes())
        except (OSError, ValueError):
            return None

    def kind(self, needs: Needs) -> tuple[str, ...]:
        """Return partition, constraint, reservation and layout of a seat for ``needs``. Raises NoSeatError."""
        layout, settings = self._layout(needs), self._settings
        return self._partition.name, settings.constraint, settings.reservation, f"{layout.nodes} x {layout.gpus}"

    def _layout(self, needs: Needs) -> SeatLayout:
        return plan_layout(needs, self._settings, self._partition)

    def _node_file(self, layout: SeatLayout) -> Path:
        digest = hashlib.sha256(f"{self._settings.constraint}\n{self._settings.reservation}".encode()).hexdigest()[:12]
        return self._folder / "classes" / f"{self._partition.name}.{layout.nodes}x{layout.gpus}.{digest}.json"

    def _reserve_trace_seat(self, lost: Seat | None = None) -> Seat:
        """Return the trace seat, which is reserved first if there is none or only the ``lost`` one."""
        with self._trace_lock:
            if self._trace_seat is None or self._trace_seat is lost:
                self._trace_stack.close()
                needs, layout = Needs(0, name="regbot traces", shared=True), SeatLayout(nodes=1, ranks=0, gpus=0)
                self._trace_seat = self._trace_stack.enter_context(self._reserve_seat(needs, layout))
            return self._trace_seat

    def _release_trace_seat(self) -> None:
        with self._trace_lock:
            self._trace_stack.close()
            self._trace_seat = None

    @contextmanager
    def _reserve_seat(self, needs: Needs, layout: SeatLayout) -> Iterator[Seat]:
        settings = self._settings.model_copy(update={"exclude": sorted({*self._settings.exclude, *needs.avoid})})
        folder = self._folder / f"seat-{secrets.token_hex(6)}"
        reservation = Reservation(self._slurm, settings, self._partition, layout, needs, folder)
        self._reservations.add(reservation)
        try:
            reservation.wait_for_nodes(self.sandbox, self._say)
            yield SlurmSeat(settings, reservation, self.sandbox)
        finally:
            self._release(reservation)

    def _release(self, reservation: Reservation) -> None:
        try:
            reservation.release()
        except NoSeatError as error:  # the runs of this reservation have ended, so the error is only reported
            self._say(str(error))
        self._reservations.discard(reservation)

    @cached_property
    def _partition(self) -> Partition:
        return find_partition(self._slurm, self._settings.partition)
