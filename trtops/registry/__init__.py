"""Where releases are published: the port, the file registry, the memory fake."""
