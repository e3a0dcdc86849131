{{- /*
The pools of workers: a list of `worker` with the values of each pool in place of its own, and the pool's name. Without
worker.pools, it has the default pool alone.
*/}}
{{- define "mops.pools" -}}
{{- $default := dict "name" "default" "minWorkers" .Values.autoscaler.minWorkers "maxWorkers" .Values.autoscaler.maxWorkers "memoryPool" .Values.worker.memoryPool -}}
{{- $pools := list -}}
{{- range prepend .Values.worker.pools $default -}}
{{- $pool := mergeOverwrite (dict "minWorkers" 0 "maxWorkers" $.Values.autoscaler.maxWorkers) (deepCopy $.Values.worker) (dict "memoryPool" "") (deepCopy .) -}}
{{- if gt (int64 $pool.minWorkers) (int64 $pool.maxWorkers) -}}
{{- $where := ternary "autoscaler" (printf "worker.pools: %s" .name) (eq .name "default") -}}
{{- fail (printf "\n\n%s.minWorkers=%d is more than maxWorkers=%d.\n" $where (int64 $pool.minWorkers) (int64 $pool.maxWorkers)) -}}
{{- end -}}
{{- range $other := $pools -}}
{{- if eq $other.name $pool.name -}}
{{- fail (printf "\n\nworker.pools: two pools have the name %s (\"default\" is that of the workers outside of worker.pools).\n" $pool.name) -}}
{{- end -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- end -}}
{{- $pools | toJson -}}
{{- end }}

{{- /* For each pool, where simulations run again that ran out of memory: a JSON object, empty without worker.pools. */}}
{{- define "mops.memoryPools" -}}
{{- $found := dict -}}
{{- if .Values.worker.pools -}}
{{- $pools := include "mops.pools" . | fromJsonArray -}}
{{- $largest := first $pools -}}
{{- range $pools -}}
{{- $bytes := include "mops.bytes" (dict "name" "worker.memory" "quantity" .memory) | int64 -}}
{{- $most := include "mops.bytes" (dict "name" "worker.memory" "quantity" $largest.memory) | int64 -}}
{{- $n := ternary .maxWorkers .replicas $.Values.autoscaler.enabled -}}
{{- if and (gt $bytes $most) (gt (int64 $n) 0) }}{{ $largest = . }}{{ end -}}
{{- $_ := set $found .name .name -}}
{{- end -}}
{{- range $pools -}}
{{- $chosen := .memoryPool | default (ternary $largest.name .name (eq .name "default")) -}}
{{- if not (hasKey $found $chosen) -}}
{{- fail (printf "\n\npool %s: memoryPool=%s is not the name of a pool.\n" .name $chosen) -}}
{{- end -}}
{{- $_ := set $found .name $chosen -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end }}

{{- define "mops.pool.metadata" -}}
{{- $scope := dict "root" . "component" "worker" -}}
name: {{ include "mops.name" $scope }}{{ if ne .pool "default" }}-{{ .pool }}{{ end }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "mops.labels" $scope | nindent 2 }}
  mops/pool: {{ .pool }}
{{- end }}

{{- define "mops.pool.selector" -}}
{{ include "mops.selector" (dict "root" . "component" "worker") }}
mops/pool: {{ .pool }}
{{- end }}

{{- /* The workers' Deployment and PodDisruptionBudget of a pool: the context is the root with the pool's values. */}}
{{- define "mops.pool.objects" -}}
{{- /*
Not a StatefulSet, because a worker keeps no data. A StatefulSet restarts one pod after the other, waits for a lost node
to return before it replaces the node's pods, and gives a new worker a name that the scheduler may still know.
*/ -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "mops.pool.metadata" . | nindent 2 }}
spec:
  {{- /* The autoscaler owns this number, and an upgrade must not change it. */}}
  {{- if not .Values.autoscaler.enabled }}
  replicas: {{ int64 .Values.worker.replicas }}
  {{- end }}
  strategy:
    {{- if eq .Values.worker.updateStrategy.type "Recreate" }}
    {{- /* The API server refuses rollingUpdate, which values.yaml sets for the other type. */}}
    type: Recreate
    {{- else }}
    {{- toYaml .Values.worker.updateStrategy | nindent 4 }}
    {{- end }}
  selector:
    matchLabels:
      {{- include "mops.pool.selector" . | nindent 6 }}
  template:
    {{- include "mops.worker.template" . | nindent 4 }}
{{- if .Values.worker.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "mops.pool.metadata" . | nindent 2 }}
spec:
  maxUnavailable: {{ .Values.worker.podDisruptionBudget.maxUnavailable }}
  {{- /* A pod that is not ready does no work: it must not keep its node from being drained. */}}
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "mops.pool.selector" . | nindent 6 }}
{{- end }}
{{- end }}
