"""Policies: ``evaluate(document) -> Verdict``. A denial is a value, an error means "could not decide"."""
