# METADATA
# scope: package
# title: Settings of the environment
# description: |
#   Picks an environment's part of a table `{environments: {NAME: …, default: …}}`; an environment that is not named gets
#   `default`. Where the table or the default is missing, the answer is an empty object, which allows nothing.
package trtops.lib.environments

import data.trtops.lib.facts

default of(_) := {}

of(table) := table.environments[name(table)]

name(table) := facts.at(["environment"]) if named(table)

name(table) := "default" if not named(table)

named(table) if table.environments[facts.at(["environment"])]
