{{- /* The worker's pod, also in dedicated clusters. There the operator sets the two DASK_ variables. */}}
{{- define "mops.worker.template" -}}
{{- $scope := dict "root" . "component" "worker" -}}
{{- $grace := int64 .Values.worker.terminationGracePeriodSeconds -}}
metadata:
  labels:
    {{- include "mops.podLabels" $scope | nindent 4 }}
    {{- with .pool }}
    mops/pool: {{ . }}
    {{- end }}
  annotations:
    {{- include "mops.daskChecksum" . | nindent 4 }}
    {{- with .Values.worker.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "mops.podBasics" $scope | nindent 2 }}
  terminationGracePeriodSeconds: {{ $grace }}
  containers:
    - name: worker
      image: {{ include "mops.image" . | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- /*
      No command, because it would replace the image's first process. Fixed ports, so that a NetworkPolicy can name them.
      The HTTP server has health and metrics: with --no-dashboard, a worker does not import the libraries of Dask's pages.
      */}}
      args:
        - dask
        - worker
        - $(DASK_SCHEDULER_ADDRESS)
        - --name=$(DASK_WORKER_NAME)
        - --nworkers=1
        - --nthreads={{ int64 .Values.worker.threads }}
        - --memory-limit={{ include "mops.worker.limitMiB" . }}MiB
        - --worker-port=8789
        - --nanny-port=8790
        - --dashboard-address={{ include "mops.httpAddress" 8788 }}
        - --no-dashboard
        - --local-directory=/tmp/dask
        - --death-timeout=120
        {{- with .pool }}
        - --resources=pool-{{ . }}=1
        {{- end }}
      env:
        {{- include "mops.podNameEnv" . | nindent 8 }}
        - name: DASK_SCHEDULER_ADDRESS
          value: {{ include "mops.scheduler.address" . }}
        - name: DASK_WORKER_NAME
          valueFrom:
            fieldRef: {fieldPath: metadata.name}
        {{- include "mops.homeEnv" . | nindent 8 }}
        {{- include "mops.daskEnv" . | nindent 8 }}
        {{- /* glibc reads this variable when a process starts, before Dask's configuration could set it. */}}
        - name: MALLOC_TRIM_THRESHOLD_
          value: "65536"
        {{- with include "mops.storageEnv" . }}
        {{- . | trim | nindent 8 }}
        {{- end }}
        {{- with include "mops.extraEnv" $scope }}
        {{- . | nindent 8 }}
        {{- end }}
      {{- with include "mops.envFrom" $scope }}
      envFrom:
        {{- . | trim | nindent 8 }}
      {{- end }}
      ports:
        - {name: http, containerPort: 8788}
        - {name: worker, containerPort: 8789}
        - {name: nanny, containerPort: 8790}
      resources:
        requests:
          cpu: {{ .Values.worker.cpu | default (printf "%dm" (mul 750 (int64 .Values.worker.threads))) | quote }}
          memory: {{ include "mops.quantity" .Values.worker.memory | quote }}
          {{- with .Values.worker.extraResources }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        limits:
          {{- with .Values.worker.cpuLimit }}
          cpu: {{ . | quote }}
          {{- end }}
          memory: {{ include "mops.quantity" .Values.worker.memory | quote }}
          {{- with .Values.worker.extraResources }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
      securityContext:
        {{- include "mops.securityContext" . | nindent 8 }}
      lifecycle:
        preStop:
          exec:
            {{- /* Leave some seconds of the grace period for Dask to close. Kubernetes drops a hook's output. */}}
            command:
              - python
              - -m
              - mops.worker.retire
              - --seconds={{ sub $grace 15 }}
              - --say-to=/proc/1/fd/2
      {{- /*
      The nanny starts the worker, with its HTTP server, when it has found a scheduler. Without a scheduler, the nanny gives
      up after Dask's 30 s for a connection, and Kubernetes restarts the container.
      */}}
      startupProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 36
      readinessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
      {{- /* Long limits, because the nanny needs time to restart a worker that used too much memory. */}}
      livenessProbe:
        httpGet: {path: /health, port: http}
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 6
      volumeMounts:
        {{- include "mops.ownMounts" $scope | nindent 8 }}
        {{- include "mops.daskMount" . | nindent 8 }}
        {{- if .Values.storage.pvc.enabled }}
        - name: storage
          mountPath: /storage
          readOnly: true
        {{- end }}
  volumes:
    {{- include "mops.ownVolumes" $scope | nindent 4 }}
    {{- include "mops.daskVolume" . | nindent 4 }}
    {{- with include "mops.storageVolume" . }}
    {{- . | trim | nindent 4 }}
    {{- end }}
{{- end }}
