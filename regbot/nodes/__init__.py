"""Nodes: is this one slow, whatever code runs on it? Its reference probe, its history, and its quarantine.

reference    runs the probe on all nodes of a seat: one NodeProbe per host
history      what was probed before, one file per node
judgement    is a node slow, against its own history and against its peers: no I/O
quarantine   nodes that were taken out of service with evidence, and released again
examination  all of these in a row, for a session or an operator
"""

from regbot.nodes.errors import NodeError
from regbot.nodes.examination import examine, listing, report
from regbot.nodes.fitness import Fitness
from regbot.nodes.history import NODES, append, histories, history, nodes_folder
from regbot.nodes.judgement import explains, judge
from regbot.nodes.quarantine import events, on_trial, quarantine, quarantined, release, settle_trial
from regbot.nodes.reference import CPU, GPU, ProbeError, probe

__all__ = [
    "CPU",
    "GPU",
    "NODES",
    "Fitness",
    "NodeError",
    "ProbeError",
    "append",
    "events",
    "examine",
    "explains",
    "histories",
    "history",
    "judge",
    "listing",
    "nodes_folder",
    "on_trial",
    "probe",
    "quarantine",
    "quarantined",
    "release",
    "report",
    "settle_trial",
]
