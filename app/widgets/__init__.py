"""Widgets, colours and words that know nothing of models and runs."""
