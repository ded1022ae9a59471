"""The OpenAI-compatible server over a supervisor's units: asks.py reads requests, answer.py makes text of tokens,
bodies.py writes answers, app.py has the routes, run.py the process."""
