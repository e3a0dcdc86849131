{{- /* Dask's configuration for scheduler, workers and runners, and its place in a container. */}}

{{- define "mops.daskConfig" -}}
{{- $own := include "mops.daskDefaults" . | fromYaml -}}
{{- mergeOverwrite $own (deepCopy .Values.dask.config) | toYaml -}}
{{- end }}

{{- /*
Saturation: tasks that do not run wait on the scheduler, because a worker would hold their data.
Routes: only health, metrics, and the files of Dask's dashboard, because HTTP asks for no certificate.
Memory: Dask measures only a worker's own process, and mops the whole process tree. Results are mapped files, which
spilling does not free. mops pauses a full worker itself. The nanny restarts a worker process that exceeds its limit.
Profile: Dask's own profiler sees threads that wait for child processes. It doubles the CPU time of an idle worker.
*/}}
{{- define "mops.daskDefaults" -}}
distributed:
  {{- if .Values.tls.enabled }}
  comm:
    {{- include "mops.tls.config" . | nindent 4 }}
  {{- end }}
  scheduler:
    worker-saturation: 1.0
    http:
      routes:
        - distributed.http.scheduler.prometheus
        - distributed.http.health
        - distributed.http.statics
  worker:
    http:
      routes:
        - distributed.http.worker.prometheus
        - distributed.http.health
    profile:
      enabled: false
    memory:
      target: false
      spill: false
      pause: false
      terminate: 0.95
{{- end }}

{{- define "mops.daskChecksum" -}}
checksum/dask-config: {{ include "mops.daskConfig" . | sha256sum }}
{{- end }}

{{- define "mops.daskEnv" -}}
- name: DASK_CONFIG
  value: /etc/mops/dask
{{- end }}

{{- define "mops.daskMount" -}}
- name: dask-config
  mountPath: /etc/mops/dask
  readOnly: true
{{- include "mops.tlsMount" . }}
{{- end }}

{{- define "mops.daskVolume" -}}
- name: dask-config
  configMap:
    name: {{ include "mops.name" (dict "root" . "component" "dask") }}
{{- include "mops.tlsVolume" . }}
{{- end }}

{{- /*
Where Dask's HTTP server listens, by its port. Dask takes ":8787" for 0.0.0.0, which a pod of an IPv6-only cluster does
not have, and it reads no IPv6 address here. Each name stands for the addresses of both families that /etc/hosts has:
localhost for port-forwarding, the pod's name for its own addresses.
*/}}
{{- define "mops.httpAddress" -}}
localhost:{{ . }},$(POD_NAME):{{ . }}
{{- end }}

{{- define "mops.podNameEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
{{- end }}
