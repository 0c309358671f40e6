"""Protect fits of Keras: their state, their place in the data, and the callback that keeps both."""
