{{- /* The parts that the PodMonitor and the ServiceMonitor share: (dict "root" $ "values" .Values.metrics.podMonitor). */}}

{{- define "mops.monitor.metadata" -}}
name: {{ include "mops.name" (dict "root" .root "component" "metrics") }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- $labels := include "mops.labels" (dict "root" .root "component" "metrics") | fromYaml }}
  {{- merge $labels .values.labels | toYaml | nindent 2 }}
{{- end }}

{{- define "mops.monitor.selector" -}}
selector:
  matchLabels:
    app.kubernetes.io/name: {{ .root.Chart.Name }}
    app.kubernetes.io/instance: {{ .root.Release.Name }}
  matchExpressions:
    - {key: app.kubernetes.io/component, operator: In, values: [scheduler, worker, runner]}
{{- /* The component distinguishes the series of scheduler, workers and runners. */}}
jobLabel: app.kubernetes.io/component
{{- end }}

{{- /* Scheduler and workers have the port `http`, runners the port `metrics`. */}}
{{- define "mops.monitor.endpoints" -}}
- {port: http, path: /metrics, interval: {{ .values.interval }}}
- {port: metrics, path: /metrics, interval: {{ .values.interval }}}
{{- end }}

{{- /* A Service without an address, whose only use is that a ServiceMonitor finds the pods of a component. */}}
{{- define "mops.monitor.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "mops.metadata" . | nindent 2 }}
spec:
  clusterIP: None
  selector:
    {{- include "mops.selector" . | nindent 4 }}
  ports:
    - {name: {{ .port }}, port: {{ .number }}, targetPort: {{ .port }}}
{{- end }}
