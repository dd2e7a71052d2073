"""Whole jobs over real data: ``python -m pystate.examples.flights`` and ``….access_log PATH``.

``python -m pystate.examples`` lists them.
"""
