"""How do I run it in production? A plan as commands, scripts and manifests of the engines people run."""
