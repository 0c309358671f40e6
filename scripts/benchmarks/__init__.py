"""Measure procsv beside TensorFlow's own supervisors. Run by `scripts/bench`; not part of any
package.
"""
