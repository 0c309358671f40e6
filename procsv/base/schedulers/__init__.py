"""Read the environment variables that schedulers set.  Pure.

The schedulers are Slurm, TF_CONFIG and indexed Kubernetes Jobs.
"""
