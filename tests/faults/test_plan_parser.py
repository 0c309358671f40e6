"""A fault plan does what its author wrote, and an error names its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsv.base.errors import UserError
from procsv.base.journal.line import Line
from procsv.faults.plan import ACTIONS, HOWS, Plan, PlannedFault, count_done, describe, interval_s
from procsv.faults.plan_parser import parse_fault, parse_plan
from tests.support.journal import an_entry


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill trainer at step 50", PlannedFault("trainer", "kill", at_step=50)),
        ("kill checkpoint after 10s, 3 times", PlannedFault("checkpoint", "kill", after_s=10, times=3)),
        ("kill trainer every 100 steps", PlannedFault("trainer", "kill", every_steps=100, times=0)),
        ("exit trainer with 3 after 1m", PlannedFault("trainer", "exit", 3, after_s=60)),
        ("exit trainer 3 at step 4", PlannedFault("trainer", "exit", 3, at_step=4)),
        ("stop summary for 5s every 20 steps", PlannedFault("summary", "stop", 5, every_steps=20, times=0)),
        ("preempt trainer with grace 10s at step 8", PlannedFault("trainer", "preempt", 10, at_step=8)),
        ("preempt watchdog at step 8", PlannedFault("watchdog", "preempt", 30, at_step=8)),
        ("corrupt the newest checkpoint by flip at step 9", PlannedFault("logdir", "corrupt", how="flip", at_step=9)),
        ("fill disk for 10s at step 6", PlannedFault("logdir", "fill", 10, at_step=6)),
        ("drop messages of trainer for 2s after 0s", PlannedFault("trainer", "drop", 2, after_s=0)),
        (
            "kill trainer at random every 30s, 5 times",
            PlannedFault("trainer", "kill", every_s=30, is_random=True, times=5),
        ),
        ("kill trainer at step 3 always", PlannedFault("trainer", "kill", at_step=3, times=0)),
        ("raise trainer every 9s once", PlannedFault("trainer", "raise", every_s=9, times=1)),
    ],
)
def test_a_fault_is_parsed_from_words(text: str, fault: PlannedFault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("klil trainer at step 5", "did you mean 'kill'?"),
        ("kill trianer at step 5", "did you mean 'trainer'?"),
        ("kill logdir at step 5", "kill is for trainer or checkpoint or summary or watchdog, not for logdir"),
        ("kill trainer at stpe 5", "cannot read 'at stpe 5'"),
        ("kill trainer", "say when"),
        ("kill", "expected 'ACTION TARGET [WHEN]'"),
        ("kill trainer at step 5 after 3s", "has two times"),
        ("kill trainer with 3 at step 5", "kill does not take 'code'"),
        ("exit trainer at step 5", "exit needs an exit code"),
        ("exit trainer with 999 at step 5", "from 0 to 255, not '999'"),
        ("stop trainer for ever at step 5", "'ever'"),
        ("corrupt logdir by magic at step 5", "'magic'"),
        ("kill trainer at step many", "'many'"),
        ("kill trainer every 0s", "above 0"),
        ("kill machine of worker.0 at step 5", "there is no target 'machine'"),
        ("cut machine of worker.0 for 5s at step 5", "there is no action 'cut'"),
    ],
)
def test_an_unknown_word_is_an_error_that_names_it(text: str, named: str) -> None:
    with pytest.raises(UserError) as error:
        parse_fault(text)
    assert named in str(error.value)


PLAN = """
seed = 7

[[fault]]
do = "kill trainer at step 50"

[[fault]]
do = "exit trainer with 3 every 200 steps, 4 times"

[[fault]]
do = "kill trainer at random every 30s"
"""


def test_a_plan_is_read_from_a_file() -> None:
    assert parse_plan(PLAN, "plan.toml") == Plan(
        (
            PlannedFault("trainer", "kill", at_step=50),
            PlannedFault("trainer", "exit", 3, every_steps=200, times=4),
            PlannedFault("trainer", "kill", every_s=30, is_random=True, times=0),
        ),
        7,
    )


@pytest.mark.parametrize(
    ("wrong", "right", "line"),
    [
        ("seed = 7", "seeed = 7", 2),
        ("seed = 7", "seed = true", 2),
        ('do = "kill trainer at step', 'do = "klil trainer at step', 5),
        ("with 3", "with 300", 8),
        ("4 times", "many times", 8),
        ("every 30s", "every often", 11),
        ("every 30s", "every 0s", 11),
    ],
)
def test_an_error_in_a_file_names_its_line(wrong: str, right: str, line: int) -> None:
    with pytest.raises(UserError) as error:
        parse_plan(PLAN.replace(wrong, right), "plan.toml")
    assert f"plan.toml, line {line}:" in str(error.value)


def test_faults_in_a_file_may_be_plain_words() -> None:
    assert parse_plan('fault = [\n"kill trainer at step 50",\n"raise summary after 1s"]', "p") == Plan(
        (PlannedFault("trainer", "kill", at_step=50), PlannedFault("summary", "raise", after_s=1)), 0
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fault = [", "is not TOML"),
        ("seed = 1", "no [[fault]]"),
        ('\n[fault]\ndo = "kill trainer at step 5"', "plan.toml, line 2: write [[fault]]"),
        ('fault = [\n"kill trainer at step 5",\n"klil trainer at step 5"]', "plan.toml, line 3: fault 'klil"),
        ("fault = [5]", "instead of 5"),
        ('[[fault]]\ntarget = "trainer"\naction = "kill"', 'do = "kill trainer at step 50"'),
        ('[[fault]]\ndo = "kill trainer at step 5"\ntimes = 4', "instead of "),
    ],
)
def test_a_file_that_is_not_a_plan_is_one_error(text: str, named: str) -> None:
    with pytest.raises(UserError) as error:
        parse_plan(text, "plan.toml")
    assert named in str(error.value)


_SECONDS = st.integers(1, 10_000).map(lambda tenths: tenths / 10)


@st.composite
def faults(draw: st.DrawFn) -> PlannedFault:
    action = draw(st.sampled_from(sorted(ACTIONS)))
    kind = ACTIONS[action]
    number, how = 0.0, ""
    match kind.argument:
        case "code":
            number = float(draw(st.integers(0, 255)))
        case "seconds" | "grace":
            number = draw(_SECONDS)
        case "how":
            how = draw(st.sampled_from(HOWS))
    when = draw(
        st.one_of(
            st.fixed_dictionaries({"at_step": st.integers(0, 10**6), "times": st.integers(0, 5)}),
            st.fixed_dictionaries({"after_s": _SECONDS, "times": st.integers(0, 5)}),
            st.fixed_dictionaries({"every_steps": st.integers(1, 10**6), "times": st.integers(0, 5)}),
            st.fixed_dictionaries({"every_s": _SECONDS, "times": st.integers(0, 5), "is_random": st.booleans()}),
        )
    )
    target = draw(st.sampled_from(kind.targets))
    return PlannedFault(target, action, number, how, **when)  # type: ignore[arg-type]


@given(faults())
def test_a_faults_own_description_is_parsed_back_as_the_same_fault(fault: PlannedFault) -> None:
    assert parse_fault(str(fault)) == fault
    assert describe(fault)


def test_past_faults_are_counted_from_the_journal() -> None:
    plan = Plan((parse_fault("kill trainer at step 5"), parse_fault("kill summary every 9s")))
    happened = [*[str(plan.faults[1])] * 3, "another plan's"]
    entries = [an_entry("ready"), *(an_entry("fault", fault=fault) for fault in happened)]
    assert count_done(plan, [Line(1.0, "trainer", 1, entry) for entry in entries]) == [0, 3]


def test_the_same_seed_gives_the_same_random_intervals() -> None:
    fault = parse_fault("kill trainer at random every 30s")
    schedules = [[interval_s(Plan((fault,), seed), 0, done) for done in range(200)] for seed in (7, 7, 8)]
    assert schedules[0] == schedules[1] != schedules[2]
    assert 20 < sum(schedules[0]) / 200 < 40
