{{- /*
Dask's connections are encrypted, and each side shows a certificate of one authority. Dask lets everyone with such a
certificate run code on scheduler and workers, so one certificate serves for all: other roles would promise more than that.
*/}}

{{- define "mops.tls.secret" -}}
{{ .Values.tls.existingSecret | default (include "mops.name" (dict "root" . "component" "tls")) }}
{{- end }}

{{- define "mops.tlsMount" -}}
{{- if .Values.tls.enabled }}
- name: tls
  mountPath: /etc/mops/tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "mops.tlsVolume" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "mops.tls.secret" . }}
{{- end }}
{{- end }}

{{- /* Dask's settings for it. With require-encryption, scheduler, workers and clients refuse tcp://. */}}
{{- define "mops.tls.config" -}}
{{- $pair := dict "cert" "/etc/mops/tls/tls.crt" "key" "/etc/mops/tls/tls.key" -}}
require-encryption: true
tls:
  ca-file: /etc/mops/tls/ca.crt
  scheduler: {{ toJson $pair }}
  worker: {{ toJson $pair }}
  client: {{ toJson $pair }}
{{- end }}
