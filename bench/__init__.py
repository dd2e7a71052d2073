"""Benchmarks, by question.

``python -m bench`` runs them in turn with their peers and prints one table of ratios;
``pytest bench`` runs the same workloads with pytest-benchmark, to compare two versions. No test
asserts a time.
"""
