# SPDX-License-Identifier: MIT
# jq -r -f residuals.jq check.json: the residual and locked prefix of every sweep as residuals.csv.
"sweep,residual,locked,length,tolerance",
(.layers // .length) as $length
| (.locked_history // []) as $locked
| .solver_tolerance as $tolerance
| (.residual_history // []) | to_entries[]
| [.key, .value, $locked[.key], $length, $tolerance] | map(if . == null then "" else tostring end) | join(",")
