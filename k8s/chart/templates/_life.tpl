{{/* {root, kind, name, wanted, bounds}: how many replicas. What others scale (bounds has min and max) keeps the size that it
     has: to leave the field out would set it to 1 on the upgrade that gives it away. */}}
{{- define "phaseserve.size" -}}
{{- if not .bounds -}}
{{- .wanted -}}
{{- else -}}
{{- $live := lookup "apps/v1" .kind .root.Release.Namespace .name -}}
{{- if $live -}}
{{- max (int $live.spec.replicas) (int .bounds.min) -}}
{{- else -}}
{{- min (max (int .wanted) (int .bounds.min)) (int .bounds.max) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Seconds that a pod may take to end: notice, drain, and what comes after it. One that hangs (liveness) has nothing to
     drain: it would be given minutes to come back. */}}
{{- define "phaseserve.graceSeconds" -}}
{{- add .preStop (ceil (float64 .drain) | int) 20 -}}
{{- end -}}

{{/* {model, path, port, scheme?}: waits for three readings of the model, never less than minStartupSeconds. */}}
{{- define "phaseserve.startupProbe" -}}
{{- $read := divf (mulf (float64 .model.sizeGiB) 3072) (float64 .model.readMiBPerSecond) -}}
{{- $budget := maxf (float64 .model.minStartupSeconds) $read -}}
httpGet: {path: {{ .path }}, port: {{ .port }}, scheme: {{ .scheme | default "HTTP" }}}
periodSeconds: 5
timeoutSeconds: 3
failureThreshold: {{ ceil (divf $budget 5) | int }}
{{- end -}}

{{/* .preStopSeconds: endpoints are taken out everywhere before SIGTERM comes. */}}
{{- define "phaseserve.lifecycle" -}}
preStop:
  exec:
    command: [sleep, {{ .Values.preStopSeconds | toString | quote }}]
{{- end -}}

{{- define "phaseserve.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.podSecurity.runAsUser }}
runAsGroup: {{ int64 .Values.podSecurity.runAsUser }}
fsGroup: {{ int64 .Values.podSecurity.fsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* {ipcLock}: locked memory for RDMA comes by a file capability of the interpreter, which no_new_privs would take away. */}}
{{- define "phaseserve.containerSecurity" -}}
allowPrivilegeEscalation: {{ .ipcLock }}
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
  {{- if .ipcLock }}
  add: [IPC_LOCK]
  {{- end }}
{{- end -}}

{{- define "phaseserve.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- {name: PHASESERVE_CACHE, value: /cache}
- {name: HOME, value: /tmp}
{{- end -}}

{{/* {root, names}: changes with those of the secrets that are given in the values, so that the pods which read them are
     replaced. 32 bits of a hash: enough to differ, too few to find a secret by. */}}
{{- define "phaseserve.secretsMark" -}}
{{- $secrets := .root.Values.secrets -}}
{{- $given := dict -}}
{{- if not $secrets.existing -}}
{{- range $name := .names }}{{ with get $secrets $name }}{{ $_ := set $given $name . }}{{ end }}{{ end -}}
{{- end -}}
{{- if $given }}{{ toJson $given | sha256sum | trunc 8 }}{{ end -}}
{{- end -}}

{{/* {root, secrets}: variable -> key of the Secret. API keys may be missing there: then everybody may ask. */}}
{{- define "phaseserve.secretEnv" -}}
{{- range $variable, $key := .secrets }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef: {name: {{ include "phaseserve.secretName" $.root | quote }}, key: {{ $key }}{{ if eq $key "api-keys" }}, optional: true{{ end }}}
{{- end }}
{{- end -}}
