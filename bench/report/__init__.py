"""The report: `bench/REPORT.md`, its plots, and the figures that README and the guide cite.

``python -m bench.report`` writes them from the answers in `runs`, and measures nothing;
``--check`` says whether they are what the answers give.
"""
