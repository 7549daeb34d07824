# METADATA
# scope: package
# title: No document's schema goes back
# description: |
#   A document of an older schema lacks what services of the newer one check, so putting one in its place can
#   turn a check off. A rollback across a schema is a release of its own, written in the new schema.
# custom:
#   severity: deny
#   since: 0.1.0
#   remediation: |
#     Release again with a trtops that writes the schema that is released now.
package trtops.release.schema_not_downgraded

import data.trtops.lib.facts
import data.trtops.lib.text

findings contains {
	"message": sprintf("the schema of the %s is not known", [document]),
	"path": ["apiVersion"],
} if {
	some document, version in proposed
	not facts.is_count(version)
}

findings contains finding if {
	some finding in facts.malformed([{"fact": ["previous"], "kind": "map?", "path": ["apiVersion"]}])
}

findings contains {
	"message": sprintf("the schema of the %s is version %s, released is %s", [
		document,
		text.number(version),
		written(released),
	]),
	"path": ["apiVersion"],
} if {
	some document, version in proposed
	released := current[document]
	facts.is_count(version)
	not facts.at_least(version, released)
}

proposed := {
	"engine release": facts.at(["release", "schema_version"]),
	"config release": facts.at(["config", "schema_version"]),
}

default current := {}

current := {
	"engine release": facts.at(["previous", "schema_version"]),
	"config release": facts.at(["previous", "config_schema_version"]),
} if {
	is_object(facts.at(["previous"]))
	facts.at(["previous", "config_schema_version"]) != null
}

# The release before may have had no config that is still at hand.
current := {"engine release": facts.at(["previous", "schema_version"])} if {
	is_object(facts.at(["previous"]))
	facts.at(["previous", "config_schema_version"]) == null
}

written(version) := text.number(version) if is_number(version)

written(version) := facts.type_of(version) if not is_number(version)
