"""moetrain: Mixture-of-Experts layers for expert-parallel training."""
