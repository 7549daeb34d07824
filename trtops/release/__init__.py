"""Releases: manifests, sealing, signing, approvals, channel rules, ledger."""
