# METADATA
# scope: package
# title: Settings of the environment
# description: |
#   Picks an environment's part of a table `{environments: {NAME: …, default: …}}`; an environment that is not named gets
#   `default`. Where the table or the default is missing, the answer is an empty object, which allows nothing.
package trtops.lib.environments

default of(_) := {}

of(table) := table.environments[name(table)]

name(table) := input.environment if table.environments[input.environment]

name(table) := "default" if not table.environments[input.environment]
