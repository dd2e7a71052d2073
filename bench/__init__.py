"""Benchmarks, by question.

``python -m bench`` runs them by turns against their peers and prints one table of ratios;
``pytest bench`` gives the same workloads to pytest-benchmark, for comparing two versions. No test
asserts a time.
"""
