"""The shared executor: a pure planner, and one thread that owns a device."""
