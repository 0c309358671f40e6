"""Read the environment variables that schedulers set: Slurm, TF_CONFIG, indexed Kubernetes Jobs.  Pure."""
