"""Faults put into ranks of the runtime from outside, for benchmarks/diagnose_faults.py and its test.

rank.py is the program of a rank that has one; models.py makes models to serve; faults.py says which class of fault is
which trial, serve.py runs one on real processes; lab.py does the same where a link is at fault.
"""
