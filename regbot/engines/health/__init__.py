"""Node health around a run: monitoring, and faults of the node that void a run. It records facts but gives no
verdict."""
