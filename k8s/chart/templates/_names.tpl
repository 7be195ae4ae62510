{{/* A DNS-1035 label of at most .max characters from any text, other for other texts: what had to be changed gets a hash. */}}
{{- define "phaseserve.dnsLabel" -}}
{{- $clean := regexReplaceAll "-+" (regexReplaceAll "[^a-z0-9-]" (lower .text) "-") "-" | trimAll "-" -}}
{{- $clean = ternary $clean (printf "r-%s" $clean | trimSuffix "-") (regexMatch "^[a-z]" $clean) -}}
{{- if and (eq $clean .text) (le (len $clean) (int .max)) -}}
{{- $clean -}}
{{- else -}}
{{- printf "%s-%s" (trunc (int (sub .max 9)) $clean | trimSuffix "-") (sha256sum .text | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* A label's value from any text, on the same terms. */}}
{{- define "phaseserve.labelValue" -}}
{{- $clean := regexReplaceAll "[^A-Za-z0-9._-]" . "-" | trimAll "-._" -}}
{{- if and (eq $clean .) (le (len $clean) 63) -}}
{{- $clean -}}
{{- else -}}
{{- printf "%s-%s" (trunc 54 $clean) (sha256sum . | trunc 8) | trimAll "-._" -}}
{{- end -}}
{{- end -}}

{{/* What all names begin with. 38 characters: the longest name of a StatefulSet then leaves room for its pods' labels. */}}
{{- define "phaseserve.fullname" -}}
{{- include "phaseserve.dnsLabel" (dict "text" (default .Release.Name .Values.fullnameOverride) "max" 38) -}}
{{- end -}}

{{/* {root, component, pool?}: what selects pods; never changes while a release lives. The role is not in it: it may change. */}}
{{- define "phaseserve.selector" -}}
app.kubernetes.io/name: phaseserve
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
phaseserve.dev/pool: {{ . }}
{{- end }}
{{- end -}}

{{/* {root, component, pool?}: the labels of an object; ours win over the user's. */}}
{{- define "phaseserve.labels" -}}
{{- $ours := include "phaseserve.selector" . | fromYaml -}}
{{- $more := dict
  "app.kubernetes.io/version" (include "phaseserve.labelValue" .root.Chart.AppVersion)
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (include "phaseserve.labelValue" (printf "phaseserve-%s" .root.Chart.Version))
  "phaseserve.dev/model" (include "phaseserve.labelValue" .root.Values.model.name) -}}
{{- $all := deepCopy .root.Values.labels -}}
{{- range $name, $value := merge $more $ours }}{{- $_ := set $all $name $value }}{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Those of a pod: a new version of the chart that changes nothing else restarts no pod. */}}
{{- define "phaseserve.podLabels" -}}
{{- omit (include "phaseserve.labels" . | fromYaml) "helm.sh/chart" "app.kubernetes.io/managed-by" | toYaml -}}
{{- end -}}

{{- define "phaseserve.secretName" -}}
{{- .Values.secrets.existing | default (printf "%s-secrets" (include "phaseserve.fullname" .)) -}}
{{- end -}}

{{/* {root, gpu}: the image of a pod. */}}
{{- define "phaseserve.image" -}}
{{- $image := .root.Values.image -}}
{{- $image.repository }}:{{ $image.tag | default (printf "%s-%s" .root.Chart.AppVersion (ternary "cuda" "cpu" .gpu)) -}}
{{- end -}}
