"""Whose fault was it? Trace (+ Plan) -> Findings with evidence (layer 4)."""
