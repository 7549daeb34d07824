"""Shared memory between clients and workers."""
