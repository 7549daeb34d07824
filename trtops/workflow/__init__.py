"""One module a verb: picks the adapters, calls the pure parts in order."""
