"""From a spec to an artifact: a pure plan, passes on the model, and the isolated child that builds."""
