"""Training workloads that every capture benchmark shares."""
