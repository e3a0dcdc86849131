{{- /*
A pod of `helm test` that runs a program of files/ with some arguments, without rights and without a volume:
(dict "root" $ "metadata" METADATA "program" "files/look.py" "arguments" (list "http://...")).
*/}}
{{- define "mops.test.pod" -}}
apiVersion: v1
kind: Pod
metadata:
  {{- .metadata | nindent 2 }}
  annotations:
    helm.sh/hook: test
    {{- include "mops.hook" .root | nindent 4 }}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  enableServiceLinks: false
  activeDeadlineSeconds: 180
  securityContext:
    {{- toYaml .root.Values.podSecurityContext | nindent 4 }}
  {{- with include "mops.pullSecrets" .root }}
  imagePullSecrets:
    {{- . | trim | nindent 4 }}
  {{- end }}
  containers:
    - name: test
      image: {{ include "mops.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args:
        - python
        - -c
        - |
          {{- .root.Files.Get .program | nindent 10 }}
        {{- range .arguments }}
        - {{ . | quote }}
        {{- end }}
      resources:
        requests: {cpu: 50m, memory: 64Mi}
        limits: {cpu: 500m, memory: 128Mi}
      securityContext:
        {{- include "mops.securityContext" .root | nindent 8 }}
{{- end }}
