"""A pytest plugin that replaces TensorFlow's and Keras' classes as `procsv.install()` does, to run
their own tests on ours.
"""

import sys

import pytest

import procsv

procsv.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """End the training of the test's manager. Otherwise the next test's managers would be TensorFlow's."""
    drop_in = sys.modules.get("procsv.training.eager.drop_in")
    for manager in drop_in._supervised if drop_in is not None else ():
        manager.close()
