{{- /*
Names, labels and parts of pods that several objects share. Call a template of a component with
(dict "root" $ "component" "worker").
*/}}

{{- define "mops.name" -}}
{{ .root.Release.Name }}-{{ .component }}
{{- end }}

{{- /* An upgrade cannot change a selector, so it contains no version and no chart. */}}
{{- define "mops.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "mops.labels" -}}
{{ include "mops.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_") }}
{{- end }}

{{- define "mops.metadata" -}}
name: {{ include "mops.name" . }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "mops.labels" . | nindent 2 }}
{{- end }}

{{- /* Labels that are not part of a selector. */}}
{{- define "mops.ownLabels" -}}
{{- $labels := dict -}}
{{- if include "mops.clientId" . }}{{ $labels = dict "azure.workload.identity/use" "true" }}{{ end -}}
{{- merge $labels (index .root.Values .component).labels | toYaml }}
{{- end }}

{{- /* Without a version, so that an upgrade restarts only pods that it changes. */}}
{{- define "mops.podLabels" -}}
{{- merge (include "mops.selector" . | fromYaml) (include "mops.ownLabels" . | fromYaml) | toYaml }}
{{- end }}

{{- define "mops.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "mops.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- name: {{ . }}
{{- end }}
{{- end }}

{{- /* Helm prints what a hook's pod has printed (from Helm 3.18), and keeps a pod that has failed. */}}
{{- define "mops.hook" -}}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}

{{- define "mops.securityContext" -}}
{{- toYaml .Values.containerSecurityContext }}
{{- end }}

{{- /* The values of a component that are fields of its pods' spec: those that select nodes, and extraPodSpec. */}}
{{- define "mops.placement" -}}
{{- $values := index .root.Values .component -}}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $name, $_ := $values.extraPodSpec }}
{{- if has $name (list "containers" "volumes" "restartPolicy" "securityContext" "serviceAccountName" "automountServiceAccountToken" "enableServiceLinks" "imagePullSecrets" "terminationGracePeriodSeconds" "activeDeadlineSeconds" "priorityClassName" "nodeSelector" "tolerations" "affinity") -}}
{{- fail (printf "\n\n%s.extraPodSpec: the chart itself sets %s. Use the chart's other values for it.\n" $.component $name) -}}
{{- end -}}
{{- end }}
{{- with $values.extraPodSpec }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The first part of every pod's spec; with "token" true, the pod has the token of its service account. */}}
{{- define "mops.podBasics" -}}
serviceAccountName: {{ include "mops.name" . }}
automountServiceAccountToken: {{ .token | default false }}
{{- /* Dask would read a Service's variables as settings: DASK_... for a release with the name dask. */}}
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with include "mops.pullSecrets" .root }}
imagePullSecrets:
  {{- . | trim | nindent 2 }}
{{- end }}
{{- include "mops.placement" . }}
{{- end }}

{{- /* The root file system is read-only, so programs write only to /tmp. */}}
{{- define "mops.homeEnv" -}}
- name: HOME
  value: /tmp
- name: XDG_CACHE_HOME
  value: /tmp/.cache
{{- end }}

{{- /*
Whether a variable has a secret, whose value every client could read; empty: it has none. Its name sounds like one, or
its value is a URL with a password, or with the name of a user, which may be a token. The path of a file is no secret.
*/}}
{{- define "mops.isSecret" -}}
{{- $isPath := and (regexMatch "(_FILE|^GOOGLE_APPLICATION_CREDENTIALS)$" .name) (hasPrefix "/" .value) -}}
{{- $named := and (not $isPath) (regexMatch "(?i)KEY|TOKEN|SECRET|PASSW|CREDENTIAL|CONNECTION_STRING" .name) -}}
{{- $url := "(?i)(https?://|://[^/?#@\\s]*:)[^/?#@\\s]*@" -}}
{{- if or $named (regexMatch $url .value) }}true{{ end -}}
{{- end }}

{{- define "mops.storageEnv" -}}
{{- range $name, $value := .Values.storage.env }}
{{- if include "mops.isSecret" (dict "name" $name "value" $value) -}}
{{- fail (printf "\n\nstorage.env: every client of the service would read %s.\nPut it into a Secret of this namespace, and name the Secret: storage.runner.existingSecret=SECRET and storage.worker.existingSecret=SECRET.\n" $name) -}}
{{- end }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* Every client can read the variables of all pods, so a variable may only refer to a secret. */}}
{{- define "mops.extraEnv" -}}
{{- $component := .component -}}
{{- range (index .root.Values .component).extraEnv -}}
{{- if and (hasKey . "value") (include "mops.isSecret" .) -}}
{{- fail (printf "\n\n%s.extraEnv: %s has a value that every client of the service would read.\nPut it into a Secret of this namespace, and name that: {name: %s, valueFrom: {secretKeyRef: {name: SECRET, key: KEY}}}.\n" $component .name .name) -}}
{{- end -}}
{{- end -}}
{{- with (index .root.Values .component).extraEnv }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- /* The volumes of a component alone, and their mounts: /tmp, and those in values. */}}
{{- define "mops.ownVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ (index .root.Values .component).tmpSize }}
{{- with (index .root.Values .component).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "mops.ownMounts" -}}
- name: tmp
  mountPath: /tmp
{{- with (index .root.Values .component).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "mops.storageVolume" -}}
{{- if .Values.storage.pvc.enabled }}
- name: storage
  persistentVolumeClaim:
    claimName: {{ .Values.storage.pvc.existingClaim | default (printf "%s-storage" .Release.Name) }}
{{- end }}
{{- end }}

{{- define "mops.storage.url" -}}
{{- $credentials := "(://)[^/@]*:.*@|([?]).*" -}}
{{- if regexMatch $credentials .Values.storage.url -}}
{{- fail (printf "\n\nstorage.url: %s contains credentials, which every client of the service would read.\nGive the URL without them, and name a Secret with AZURE_STORAGE_SAS_TOKEN, or for S3 AWS_SECRET_ACCESS_KEY: storage.runner.existingSecret=SECRET and storage.worker.existingSecret=SECRET.\n" (regexReplaceAll $credentials .Values.storage.url "${1}${2}...")) -}}
{{- else if .Values.storage.url -}}
{{ .Values.storage.url }}
{{- else if .Values.storage.pvc.enabled -}}
/storage
{{- else -}}
{{- fail "\n\nstorage.url is not set: results need a storage.\nSet storage.url=abfs://CONTAINER/FOLDER, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER with credentials under storage.runner and storage.worker,\nor storage.pvc.enabled=true for a volume of this cluster. The chart's README describes both.\n" }}
{{- end -}}
{{- end }}

{{- /* The managed identity of a component that has one. */}}
{{- define "mops.clientId" -}}
{{- with index .root.Values.storage .component }}{{ .workloadIdentity.clientId }}{{ end -}}
{{- end }}

{{- /* Credentials from a Secret, as environment variables. */}}
{{- define "mops.envFrom" -}}
{{- with (index .root.Values.storage .component).existingSecret }}
- secretRef:
    name: {{ . }}
{{- end }}
{{- end }}

{{- define "mops.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "mops.metadata" . | nindent 2 }}
  {{- $annotations := dict }}
  {{- with index .root.Values.storage .component }}
  {{- with .workloadIdentity.clientId }}{{ $_ := set $annotations "azure.workload.identity/client-id" . }}{{ end }}
  {{- with .workloadIdentity.tenantId }}{{ $_ := set $annotations "azure.workload.identity/tenant-id" . }}{{ end }}
  {{- end }}
  {{- with merge $annotations (index .root.Values .component).serviceAccountAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{- define "mops.scheduler.address" -}}
{{ ternary "tls" "tcp" .Values.tls.enabled }}://{{ .Release.Name }}-scheduler.{{ .Release.Namespace }}.svc:8786
{{- end }}

{{- /* Pods of this release, by component, as peers of a NetworkPolicy: (list $ "worker" "runner"). */}}
{{- define "mops.peers" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ (first .).Chart.Name }}
      app.kubernetes.io/instance: {{ (first .).Release.Name }}
    matchExpressions:
      - key: app.kubernetes.io/component
        operator: In
        values: [{{ rest . | join ", " }}]
{{- end }}

{{- /* The egress that a policy allows: DNS, pods of this release, and ports outside of the cluster. */}}
{{- define "mops.egress" -}}
{{- include "mops.egressNames" . }}
- to:
    - podSelector:
        matchLabels:
          app.kubernetes.io/name: {{ .Chart.Name }}
          app.kubernetes.io/instance: {{ .Release.Name }}
{{ include "mops.egressOutside" . }}
{{- end }}

{{- define "mops.egressNames" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end }}

{{- /*
Ports at all addresses that are not blocked. The rule also names all pods, because some network plugins do not match
pods by address.
*/}}
{{- define "mops.egressOutside" -}}
{{- $blocked := dict "0.0.0.0/0" list "::/0" list -}}
{{- range .Values.networkPolicy.egress.blocked -}}
{{- $all := ternary "::/0" "0.0.0.0/0" (contains ":" .) -}}
{{- $_ := set $blocked $all (append (index $blocked $all) .) -}}
{{- end -}}
- to:
    - namespaceSelector: {}
    {{- range $all, $except := $blocked }}
    - ipBlock:
        cidr: {{ $all | quote }}
        {{- with $except }}
        except:
          {{- toYaml . | nindent 10 }}
        {{- end }}
    {{- end }}
  ports:
    {{- range .Values.networkPolicy.egress.ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}

{{- /* The pods of dedicated clusters. The operator labels them; the pods of this release's cluster lack that label. */}}
{{- define "mops.dedicatedPods" -}}
matchExpressions:
  - {key: dask.org/component, operator: In, values: [scheduler, worker]}
{{- end }}

{{- /* Bytes of a Kubernetes quantity: (dict "name" "worker.memory" "quantity" "1.5Gi"). */}}
{{- define "mops.bytes" -}}
{{- $text := toString .quantity -}}
{{- if kindIs "float64" .quantity }}{{ $text = printf "%.0f" .quantity }}{{ end -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- $factors := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if or (not $number) (not (hasKey $factors $unit)) -}}
{{- fail (printf "\n\n%s: %q is not an amount of memory: write it like 4Gi, 3800Mi or 4G.\n" .name $text) -}}
{{- end -}}
{{- mulf (float64 $number) (index $factors $unit) | floor | int64 -}}
{{- end }}

{{- /* A quantity as text, because YAML writes a large number with an exponent. */}}
{{- define "mops.quantity" -}}
{{- if kindIs "float64" . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- end }}
