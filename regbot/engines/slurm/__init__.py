"""The engine for a Slurm cluster. Each session gets one reservation, and its runs are job steps in this reservation."""
