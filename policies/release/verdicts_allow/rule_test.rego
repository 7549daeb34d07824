package trtops.release.verdicts_allow_test

import data.trtops.release.verdicts_allow

base := {"environment": "prod", "release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}}]}}

# Where the rule complains of the base with a patch.
places(patch) := complaints(object.union(base, patch))

complaints(document) := {finding.path |
	some finding in verdicts_allow.findings with input as document
}

test_allowed if places({}) == set()

test_warned if places({"release": {"spec_verdict": {"stage": "spec", "decision": "warn", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}}]}}) == set()

test_spec_denied if places({"release": {"spec_verdict": {"stage": "spec", "decision": "deny", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}}]}}) == {["spec_verdict"]}

test_evidence_denied if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "deny", "environment": "prod", "engine": "opa 1.22.3", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_not_at_hand if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": null, "environment": "prod", "engine": "opa 1.22.3", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_another_stage if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_given_for_local if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "local", "engine": "opa 1.22.3", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_environment_unknown if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": null, "engine": "opa 1.22.3", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_given_by_another_judge if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "prod", "engine": "embedded regorus 0.9.1", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_opaque_is_not_opa if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "prod", "engine": "opaque 1", "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_engine_unknown if places({"release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "prod", "engine": "opa 1.22.3", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "prod", "engine": null, "waived": []}}]}}) == {["artifacts", 0, "verdict"]}

test_local_takes_local if places({"environment": "local", "release": {"spec_verdict": {"stage": "spec", "decision": "allow", "environment": "local", "engine": "embedded", "waived": []}, "artifacts": [{"target": "t", "verdict": {"stage": "evidence", "decision": "allow", "environment": "local", "engine": "embedded", "waived": []}}]}}) == set()

test_wrong_element if places({"release": {"artifacts": ["x"]}}) == {["artifacts"], ["artifacts", 0, "verdict"]}

test_wrong_type if places({"release": {"spec_verdict": "allow"}}) == {["spec_verdict"]}

test_missing if complaints({}) == {["spec_verdict"], ["artifacts"]}
