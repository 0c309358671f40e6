"""Tests with packages that procsv does not depend on. Only `scripts/versions beside` installs them
and runs these tests.
"""

from importlib.util import find_spec

PACKAGES = ("tf_keras", "jax", "tf_slim")

collect_ignore_glob = [] if all(find_spec(name) for name in PACKAGES) else ["test_*.py"]
