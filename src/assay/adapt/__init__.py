"""Teach or steer a model: what the prompt asks for, facts of your own, a task without forgetting the rest."""
