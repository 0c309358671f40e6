"""One rank of a plain Slurm job: become its task of the cluster, as people's own scripts do.

    srun … python -m scripts.benchmarks.slurm_task CLUSTER MODULE ARGS…

CLUSTER is the `cluster` of TF_CONFIG; rank 0 is its first task. Started by slurm.py.
"""

from __future__ import annotations

import json
import os
import runpy
import sys


def main() -> None:
    cluster, module = json.loads(sys.argv[1]), sys.argv[2]
    tasks = [{"type": role, "index": index} for role, hosts in cluster.items() for index in range(len(hosts))]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": tasks[int(os.environ["SLURM_PROCID"])]})
    sys.argv[1:] = sys.argv[3:]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
