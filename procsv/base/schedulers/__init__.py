"""Readers of what schedulers tell a process in its environment: Slurm, TF_CONFIG, indexed Kubernetes Jobs.  Pure."""
