{{- /* The scheduler's pod, here and in dedicated clusters. */}}
{{- define "mops.scheduler.template" -}}
{{- $scope := dict "root" . "component" "scheduler" -}}
metadata:
  labels:
    {{- include "mops.podLabels" $scope | nindent 4 }}
  annotations:
    {{- include "mops.daskChecksum" . | nindent 4 }}
    {{- with .Values.scheduler.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "mops.podBasics" $scope | nindent 2 }}
  terminationGracePeriodSeconds: {{ int64 .Values.scheduler.terminationGracePeriodSeconds }}
  containers:
    - name: scheduler
      image: {{ include "mops.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- /* No command, because it would replace the image's first process. */}}
      args: [dask, scheduler, --port, "8786", --dashboard-address, {{ include "mops.httpAddress" 8787 | quote }}]
      env:
        {{- include "mops.podNameEnv" . | nindent 8 }}
        {{- include "mops.homeEnv" . | nindent 8 }}
        {{- include "mops.daskEnv" . | nindent 8 }}
        {{- with include "mops.extraEnv" $scope }}
        {{- . | nindent 8 }}
        {{- end }}
      ports:
        - {name: scheduler, containerPort: 8786}
        - {name: http, containerPort: 8787}
      resources:
        {{- toYaml .Values.scheduler.resources | nindent 8 }}
      securityContext:
        {{- include "mops.securityContext" . | nindent 8 }}
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 60
      readinessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      {{- /* Long limits: a busy scheduler answers late, and its restart repeats all tasks in flight. */}}
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 15
        timeoutSeconds: 10
        failureThreshold: 8
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- include "mops.daskMount" . | nindent 8 }}
  volumes:
    {{- include "mops.ownVolumes" $scope | nindent 4 }}
    {{- include "mops.daskVolume" . | nindent 4 }}
{{- end }}
