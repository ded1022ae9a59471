"""A plan as Kubernetes manifests: LeaderWorkerSet, llm-d, Dynamo graphs."""
