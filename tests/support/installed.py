"""A pytest plugin that replaces TensorFlow's and Keras' classes, as `procsv.install()` does in a program.  For their own tests."""

import sys

import pytest

import procsv

procsv.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Ends the training of a test's manager: the managers of the next test would be left to TensorFlow."""
    drop_in = sys.modules.get("procsv.training.eager.drop_in")
    for manager in drop_in._supervised if drop_in is not None else ():
        manager.close()
