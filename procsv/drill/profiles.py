"""Preemption profiles of platforms: the notice, its receivers, and the time until everything is killed.

Used by `procsv preempt`.  Pure data, from the platforms' own documents:
GCP Spot VMs: an ACPI signal, on which the init system sends SIGTERM to every process; 30 s later the machine is off.
AWS Spot: a notice in the instance's metadata 120 s before the end, which the usual handlers turn into a SIGTERM to the service.
Slurm: on preemption SIGCONT and SIGTERM to all processes of the job's steps, SIGKILL after GraceTime (60 s is usual).
Kubernetes: SIGTERM to the container's first process, SIGKILL to all after terminationGracePeriodSeconds (30 s).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
    grace_s: float  # from the notice to the kill
    notifies_all: bool  # the notice goes to every process of the run, not only to the first
    what: str


PROFILES: dict[str, Profile] = {
    "gcp-spot": Profile(30.0, True, "SIGTERM to every process, 30 s later the machine is off"),
    "aws-spot": Profile(120.0, False, "notice 120 s ahead, turned into SIGTERM for the service"),
    "slurm": Profile(60.0, True, "SIGCONT and SIGTERM to every process of the job, SIGKILL after 60 s"),
    "k8s": Profile(30.0, False, "SIGTERM to the first process, SIGKILL to all after 30 s"),
}
