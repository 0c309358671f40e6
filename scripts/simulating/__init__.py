"""The long form of the survival tests: hours of random kills, and what they leave behind."""
