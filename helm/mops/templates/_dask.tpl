{{- /* What scheduler and workers share: Dask's configuration, and how a container gets it. */}}

{{- define "mops.daskConfig" -}}
{{- $own := include "mops.daskDefaults" . | fromYaml -}}
{{- mergeOverwrite $own (deepCopy .Values.dask.config) | toYaml -}}
{{- end }}

{{- /*
Saturation: what does not run waits on the scheduler, and not on a worker with its results.
The API's routes retire workers.
Memory: Dask measures a worker's own process, and mops the whole tree of processes. Results are mapped files, which
spilling does not free; mops pauses by itself; a worker's process that outgrows its limit is restarted.
*/}}
{{- define "mops.daskDefaults" -}}
distributed:
  scheduler:
    worker-saturation: 1.0
    http:
      routes:
        - distributed.http.scheduler.api
        - distributed.http.scheduler.prometheus
        - distributed.http.scheduler.info
        - distributed.http.scheduler.json
        - distributed.http.health
        - distributed.http.proxy
        - distributed.http.statics
  worker:
    http:
      routes:
        - distributed.http.worker.prometheus
        - distributed.http.health
        - distributed.http.statics
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
{{- end }}

{{- define "mops.daskVolume" -}}
- name: dask-config
  configMap:
    name: {{ include "mops.name" (dict "root" . "component" "dask") }}
{{- end }}
