"""Composes the stages: the only place where they meet."""
