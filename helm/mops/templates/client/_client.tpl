{{- /*
The description that `mops connect` reads. From it a client builds a runner's Job, or a dedicated cluster of the same
pods. Empty values are left out.
*/}}

{{- define "mops.client" -}}
{{- $scheduler := include "mops.name" (dict "root" . "component" "scheduler") -}}
{{- $client := dict
  "format" 1
  "version" .Chart.AppVersion
  "release" .Release.Name
  "namespace" .Release.Namespace
  "storage" (include "mops.storage.url" .)
  "storageEnv" .Values.storage.env
  "scheduler" (include "mops.scheduler.address" .)
  "tlsSecret" (ternary (include "mops.tls.secret" .) "" .Values.tls.enabled)
  "dashboard" (dict "service" $scheduler "port" 8787)
  "networkPolicy" .Values.networkPolicy.enabled
  "runner" (include "mops.client.runner" . | fromJson)
  "worker" (include "mops.client.worker" . | fromJson)
  "autoscaler" (ternary (dict "minWorkers" (int64 .Values.autoscaler.minWorkers) "maxWorkers" (int64 .Values.autoscaler.maxWorkers)) dict .Values.autoscaler.enabled)
  "pools" (include "mops.memoryPools" . | fromJson)
  "schedulerPodTemplate" (include "mops.scheduler.template" . | fromYaml)
  "dedicated" (dict
    "enabled" .Values.dedicated.enabled
    "workers" (max 1 (int64 .Values.dedicated.workers))
    "runnerQueue" .Values.dedicated.runnerQueue
  )
-}}
{{- include "mops.withoutEmpty" $client | fromJson | toPrettyJson -}}
{{- end }}

{{- define "mops.client.runner" -}}
{{- $scope := dict "root" . "component" "runner" -}}
{{- $values := .Values.runner -}}
{{- $runner := dict
  "image" (include "mops.image" .)
  "imagePullPolicy" .Values.image.pullPolicy
  "imagePullSecrets" (include "mops.pullSecrets" . | fromYamlArray)
  "serviceAccount" (include "mops.name" $scope)
  "automountServiceAccountToken" $values.automountServiceAccountToken
  "podSecurityContext" .Values.podSecurityContext
  "securityContext" (include "mops.securityContext" . | fromYaml)
  "resources" $values.resources
  "ports" (list (dict "name" "metrics" "containerPort" 9095))
  "env" (include "mops.client.runnerEnv" . | fromYamlArray)
  "envFrom" (include "mops.envFrom" $scope | fromYamlArray)
  "volumes" (printf "%s\n%s\n%s" (include "mops.ownVolumes" $scope) (include "mops.daskVolume" .) (include "mops.storageVolume" .) | fromYamlArray)
  "volumeMounts" (include "mops.client.runnerMounts" . | fromYamlArray)
  "labels" (include "mops.podLabels" $scope | fromYaml)
  "annotations" $values.annotations
  "nodeSelector" $values.nodeSelector
  "tolerations" $values.tolerations
  "affinity" $values.affinity
  "priorityClassName" $values.priorityClassName
  "extraPodSpec" $values.extraPodSpec
  "queue" $values.queue
  "backoffLimit" (int64 $values.backoffLimit)
  "terminationGracePeriodSeconds" (int64 $values.terminationGracePeriodSeconds)
  "ttlSecondsAfterFinished" (int64 $values.ttlSecondsAfterFinished)
-}}
{{- with int64 $values.activeDeadlineSeconds }}{{ $_ := set $runner "activeDeadlineSeconds" . }}{{ end -}}
{{- include "mops.withoutEmpty" $runner -}}
{{- end }}

{{- define "mops.client.runnerEnv" -}}
{{- include "mops.homeEnv" . }}
{{ include "mops.daskEnv" . }}
{{ include "mops.storageEnv" . | trim }}
{{ include "mops.extraEnv" (dict "root" . "component" "runner") }}
{{- end }}

{{- define "mops.client.runnerMounts" -}}
{{ include "mops.ownMounts" (dict "root" . "component" "runner") }}
{{ include "mops.daskMount" . }}
{{- if .Values.storage.pvc.enabled }}
- name: storage
  mountPath: /storage
{{- end }}
{{- end }}

{{- define "mops.client.worker" -}}
{{- $scope := dict "root" . "component" "worker" -}}
{{- dict
  "selector" (include "mops.selector" $scope | fromYaml)
  "podTemplate" (include "mops.worker.template" . | fromYaml)
  | toJson
-}}
{{- end }}

{{- /* A dictionary as JSON without empty texts, lists and dictionaries; 0 and false stay, because they have a meaning. */}}
{{- define "mops.withoutEmpty" -}}
{{- $kept := dict -}}
{{- range $key, $value := . -}}
{{- if or $value (not (or (kindIs "string" $value) (kindIs "slice" $value) (kindIs "map" $value) (kindIs "invalid" $value))) -}}
{{- $_ := set $kept $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $kept -}}
{{- end }}
