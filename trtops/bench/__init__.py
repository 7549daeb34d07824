"""How fast an engine is: workload, measurement, statistics with intervals."""
