# SPDX-License-Identifier: MIT
# jq -rn -f curves.jq train.jsonl: the training log as curves.csv. A line of the log is an object; those with "event":
# "step" and "epoch" are read. About 400 step lines are kept.
[inputs | select(type == "object")] as $log
| [$log[] | select(.event == "step")] as $steps
| [$log[] | select(.event == "epoch")] as $epochs
| (($epochs | map(.step) | max // 0) / ([$epochs | length, 1] | max)) as $per_epoch
| (($steps | length) / 400 | ceil | if . < 1 then 1 else . end) as $stride
| "kind,epoch,loss,accuracy",
  (range(0; $steps | length; $stride) | $steps[.]
   | ["step", (if $per_epoch > 0 then .step / $per_epoch else .epoch end), .loss, .accuracy] | @csv),
  ($epochs[] | ["epoch", .epoch, .loss, .accuracy] | @csv),
  ($epochs[] | select(.test_accuracy != null) | ["test", .epoch, .test_loss, .test_accuracy] | @csv)
| gsub("\""; "")
