"""Keras' fit under procsv: its state, its place in the data, and the callback that keeps both."""
