# METADATA
# scope: package
# title: Sources of a spec
# description: Reads one element of `facts.sources`; broken parts get a stand-in, so that a finding can name the source.
package trtops.lib.sources

import data.trtops.lib.facts

# Where a list of sources stands, for facts.malformed_each.
within := {"fact": ["facts", "sources"], "path": ["model"]}

default links(_) := []

links(source) := source.links if facts.is_kind(source.links, "list of maps")

default role(_) := "source"

role(source) := source.role if is_string(source.role)

default path(_) := ["model", "source"]

path(source) := source.path if is_array(source.path)

# A text within a map, or a stand-in.
default text_of(_, _) := "(none)"

text_of(value, key) := value[key] if is_string(value[key])
