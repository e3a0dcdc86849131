{{- /*
Dask's memory limit of a worker, in MiB: the memory of its container minus the headroom, so that mops kills a simulation
before the kernel kills the container. The rules are those of `mops doctor` (docs/reference/doctor.md); a cluster that
this chart installs must pass it.
*/}}

{{- define "mops.worker.limitMiB" -}}
{{- $mib := 1048576 -}}
{{- /* The kernel counts in pages. */ -}}
{{- $memory := mul 4096 (div (include "mops.bytes" (dict "name" "worker.memory" "quantity" .Values.worker.memory) | int64) 4096) -}}
{{- $tenth := div (add $memory 9) 10 -}}
{{- $headroom := max $tenth (mul 256 $mib) -}}
{{- $rule := "max(10 %, 256 MiB)" -}}
{{- with .Values.worker.headroom -}}
{{- $headroom = include "mops.bytes" (dict "name" "worker.headroom" "quantity" .) | int64 -}}
{{- $rule = "worker.headroom" -}}
{{- end -}}
{{- if lt $headroom $tenth -}}
{{- fail (printf "\n\nworker.headroom: %d MiB is less than a tenth of worker.memory, %d MiB of %d MiB.\nThe kernel would kill the whole worker before mops can kill the simulation that uses too much memory.\nLeave worker.headroom empty for max(10 %%, 256 MiB).\n" (div $headroom $mib) (div $tenth $mib) (div $memory $mib)) -}}
{{- end -}}
{{- $limit := div (sub $memory $headroom) $mib -}}
{{- include "mops.worker.checkShare" (dict "root" $ "memory" (div $memory $mib) "headroom" (div $headroom $mib) "rule" $rule "limit" $limit) -}}
{{- $limit -}}
{{- end }}

{{- /* A worker's own process uses 192 MiB, including data in transit. A slot can use 256 MiB between two measurements. */}}
{{- define "mops.worker.checkShare" -}}
{{- $threads := int64 .root.Values.worker.threads -}}
{{- $share := sub (div (sub .limit 192) $threads) 256 -}}
{{- if or (lt .limit 192) (lt $share 256) -}}
{{- $least := add 192 (mul 512 $threads) -}}
{{- $enough := max (add $least .headroom) (add 1 (div (mul 10 $least) 9)) -}}
{{- fail (printf "\n\nworker.memory: a simulation has %d MiB, and needs 256 MiB or more:\n  %d MiB  worker.memory\n- %d MiB  headroom, %s\n= %d MiB  for Dask\n- 192 MiB  the worker's own process\n  / %d  worker.threads\n- 256 MiB  for what a simulation allocates between two measurements\n= %d MiB  for a simulation\nSet worker.memory to %dMi or more, or lower worker.threads.\n" $share .memory .headroom .rule .limit $threads $share $enough) -}}
{{- end -}}
{{- end }}
