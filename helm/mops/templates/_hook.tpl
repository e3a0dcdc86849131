{{- /*
A pod that Helm runs, with the account, labels, annotations and nodes of a component:
(dict "root" $ "on" "test" "as" "runner" "name" NAME "labels" LABELS "args" ARGS). Optional are "container", from which the
pod takes variables and mounts, and "volumes". Helm's --timeout limits the pod: a node may pull its image for long.
*/}}
{{- define "mops.hookPod" -}}
{{- $scope := dict "root" .root "component" .as -}}
apiVersion: v1
kind: Pod
metadata:
  name: {{ .root.Release.Name }}-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- merge (deepCopy .labels) (include "mops.ownLabels" $scope | fromYaml) | toYaml | nindent 4 }}
  annotations:
    helm.sh/hook: {{ .on }}
    {{- include "mops.hook" .root | nindent 4 }}
    {{- with (index .root.Values .as).annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  restartPolicy: Never
  activeDeadlineSeconds: 3600  # Helm leaves a pod that has not started in time
  {{- omit (include "mops.podBasics" $scope | fromYaml) "initContainers" | toYaml | nindent 2 }}
  containers:
    - name: {{ .name }}
      image: {{ include "mops.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args:
        {{- toYaml .args | nindent 8 }}
      {{- with pick (.container | default dict) "env" "envFrom" "volumeMounts" }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      resources:
        requests: {cpu: 50m, memory: 128Mi}
        limits: {cpu: 500m, memory: 256Mi}
      securityContext:
        {{- include "mops.securityContext" .root | nindent 8 }}
  {{- with .volumes }}
  volumes:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
