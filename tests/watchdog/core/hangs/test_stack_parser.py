"""The place where a program stood, crashed or raised is its own innermost frame."""

from __future__ import annotations

from procsv.watchdog.core.hangs.stack_parser import where_it_was_raised

RAISED = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 90, in <module>
    main()
  File "/home/me/train.py", line 60, in main
    one_step()
  File "/home/me/train.py", line 41, in one_step
    read_batch()
  File "/home/me/data.py", line 7, in read_batch
    raise ValueError
ValueError
"""


def test_the_innermost_of_the_programs_own_frames_is_where_it_was_raised() -> None:
    assert where_it_was_raised(RAISED) == "read_batch (/home/me/data.py:7)"
