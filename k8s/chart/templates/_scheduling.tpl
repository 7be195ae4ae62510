{{/* {root, pod, selector, spreadKey, rackKey?, runtimeClass?}: where a pod may run. */}}
{{- define "phaseserve.scheduling" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . | quote }}}
  {{- end }}
{{- end }}
{{- with .pod.priorityClass }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .runtimeClass }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- with .pod.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pod.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .spreadKey }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ . | quote }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "phaseserve.selector" $.selector | nindent 8 }}
{{- end }}
{{- with .rackKey }}
affinity:
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: {{ . | quote }}
          labelSelector:
            matchLabels: {{- include "phaseserve.selector" (dict "root" $.root "component" "replica") | nindent 14 }}
{{- end }}
{{- end -}}
