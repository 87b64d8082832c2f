"""Detection of slow nodes, independent of the code under test: reference probe, history and quarantine.

reference    runs the reference probe on all nodes of a seat, and returns one NodeProbe for each host
history      stores the probes, in one file for each node
judgement    decides whether a node is slow, compared with its own history and with its peers; does no I/O
quarantine   takes nodes out of service, with evidence, and releases them
examination  does all of this for freshly measured probes: judge, store, quarantine
fitness      probes the nodes of a session, before its first run and when one node made the others wait
"""

from regbot.nodes.examination import examine, list_nodes, report_node
from regbot.nodes.fitness import Fitness
from regbot.nodes.history import nodes_folder, read_history
from regbot.nodes.quarantine import quarantine, release
from regbot.nodes.reference import probe

__all__ = [
    "Fitness",
    "examine",
    "list_nodes",
    "nodes_folder",
    "probe",
    "quarantine",
    "read_history",
    "release",
    "report_node",
]
