"""Tasks: what models are used for, one folder a task with its interface."""
