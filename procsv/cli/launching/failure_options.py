"""Declare the options of `procsv launch` about failures, limits, notifications and injected faults.

Used by launch.py.
"""

from __future__ import annotations

import click

from procsv.cli.usage.grouped_help import OptionGroup, count, option, seconds
from procsv.cli.values import COMMAND_LINE, DURATION_RANGE, NOTIFY, PHASE_LIMITS, PORT, SIZE
from procsv.ipc.messaging.launch_settings import HANG_LIMITS_S

RESTARTS = OptionGroup(
    "Restarts",
    count("--max-failures", 1, 5, "Give up after N failures in a row without a newly saved step.", is_common=True),
    option(
        "--backoff",
        type=DURATION_RANGE,
        default="1s..60s",
        metavar="MIN..MAX",
        help="Delay before a restart: none after the first failure of a program that trained, then MIN, doubled with each "
        "failure, MAX at most.",
        is_common=True,
    ),
    count("--early-failures", 1, 2, "Give up after N exceptions or exit codes before the first step of this launch."),
    count("--same-failures", 2, 3, "Give up after the same exception at the same step N times."),
    count(
        "--repeated-failures",
        0,
        5,
        "Give up after the same failure (exception and frame, signal, hang) N times in a row that keeps less than --min-kept "
        "of training each. 0: never.",
    ),
    seconds(
        "--min-kept",
        "min_kept_s",
        "60s",
        "An attempt that keeps this much training is not counted as a repeated failure.",
    ),
    option(
        "--min-goodput",
        type=click.FloatRange(0.0, 1.0, max_open=True),
        default=0.05,
        metavar="SHARE",
        help="Give up when less than this share of the time of the last --goodput-attempts was training that is kept. 0: never.",
    ),
    count("--goodput-attempts", 1, 10, "Number of attempts over which --min-goodput is measured."),
    count(
        "--suspect-crashes",
        1,
        2,
        "After N crashes of attempts that had all resumed from the same state, resume from the checkpoint before that state.",
    ),
    seconds(
        "--disk-wait",
        "disk_wait_s",
        "1h",
        "Time to wait for room when a full disk has ended the program, which counts as no failure; then give up.",
        least_s=1.0,
    ),
    count("--service-failures", 1, 5, "Give up after N failures of one service within --service-period."),
    seconds(
        "--service-period",
        "service_period_s",
        "300s",
        "Time in which the failures of a service are counted.",
        least_s=1.0,
    ),
)

LIMITS = OptionGroup(
    "Hangs and limits",
    seconds(
        "--hang-timeout",
        "hang_timeout_s",
        "auto",
        "Longest time that one step may take; then the program is ended and restarted. auto: 20 times the median "
        "step, at least 2 minutes and at most 30. Callbacks and evaluations do not count as steps. In a loop with step(), auto sets "
        "no limit for a step. procsv.extend(seconds) in the program adds to it.",
        "auto",
        "off",
        least_s=0.1,
        is_common=True,
    ),
    option(
        "--hang-limits",
        "hang_limits_s",
        type=PHASE_LIMITS,
        default=", ".join(f"{phase}={limit_s / 60:g}m" for phase, limit_s in HANG_LIMITS_S.items()),
        metavar="PHASE=S,...",
        help="For each phase other than a step: how long the program may show no progress, CPU time, I/O or output. service: how "
        "long one iteration of a service's main loop may take. program: callbacks, evaluations, the time between two fits or sessions. A phase that is not "
        "named keeps its default. Before its first session a program is never ended.",
    ),
    option(
        "--memory-limit",
        type=SIZE,
        default="0",
        show_default="none",
        metavar="SIZE",
        help="Memory that the program and its children may use; above it, the program saves and is restarted without counting as a failure.",
        is_common=True,
    ),
    option(
        "--malloc",
        type=click.Choice(("keep", "system")),
        default="keep",
        help="keep: malloc keeps what a step has freed for the next one, which is faster on a CPU; no change if the "
        "environment configures malloc. system: malloc's own behaviour.",
    ),
    seconds(
        "--grace", "grace_s", "25s", "Time that a stop may take, everything included.", least_s=1.0, is_common=True
    ),
)

EVENTS = OptionGroup(
    "Events",
    option(
        "--on-event",
        type=COMMAND_LINE,
        default="",
        show_default="none",
        metavar="CMD",
        help="Command to run at a crash, a hang, a failed checkpoint, a preemption and the end, with the event as JSON on its "
        "standard input. It is split as a shell would split it, but run without a shell.",
        is_common=True,
    ),
    option(
        "--notify",
        type=NOTIFY,
        default="",
        show_default="none",
        metavar="URL",
        help="Tell people of the same events, in a sentence, through Apprise: slack://…, mailto://…, json://… and a hundred others. "
        "Separate several with commas. Needs pip install 'procsv[notify]'. Set it as PROCSV_LAUNCH_NOTIFY to keep it out of the process list.",
    ),
    seconds(
        "--on-event-timeout",
        "on_event_s",
        "30s",
        "Longest time that the command of --on-event may take; then it is killed.",
        least_s=0.1,
    ),
    option(
        "--metrics-port",
        type=PORT,
        default="",
        show_default="none",
        metavar="[HOST:]PORT",
        help="Serve the run's metrics to Prometheus, on this machine only unless HOST says otherwise. They are in "
        "procsv/metrics.prom in any case. Needs pip install 'procsv[metrics]'.",
    ),
    option(
        "--preempt-signal",
        type=click.Choice(("SIGTERM", "SIGUSR1", "SIGUSR2"), case_sensitive=False),
        default="SIGTERM",
        help="Extra signal treated as a preemption notice, to procsv or to the program. SIGTERM always is one.",
    ),
)

FAULTS = OptionGroup(
    "Faults",
    option(
        "--fault",
        multiple=True,
        metavar="TEXT",
        help="Inject this fault (repeatable), for example 'kill trainer at step 50'.",
        is_common=True,
    ),
    option("--plan", type=click.Path(dir_okay=False), metavar="FILE", help="Fault plan (TOML).", is_common=True),
    seconds(
        "--preempt-every",
        "preempt_every",
        None,
        "Preempt the program at random intervals of this mean: notice, grace, kill, restart.",
        least_s=0.1,
        is_common=True,
    ),
    seconds("--preempt-grace", "preempt_grace", "30s", "Time from the notice to the kill, with --preempt-every."),
    option("--preempt-seed", type=int, default=0, metavar="N", help="Random seed for --preempt-every."),
)
