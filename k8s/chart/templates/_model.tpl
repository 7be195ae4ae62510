{{/* Where the model's files come from, as a volume of the pod. */}}
{{- define "phaseserve.modelVolume" -}}
{{- $model := .Values.model -}}
{{- if eq $model.source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ $model.pvc.claim | default (printf "%s-model" (include "phaseserve.fullname" .)) | quote }}, readOnly: true}
{{- else if eq $model.source "image" }}
- name: model
  image:
    reference: {{ required "model.image.reference: the model's image" $model.image.reference | quote }}
    pullPolicy: {{ $model.image.pullPolicy }}
{{- else if eq $model.source "download" }}
- name: model
  emptyDir: {sizeLimit: {{ ceil (mulf (float64 $model.sizeGiB) 2) | int }}Gi}
{{- end }}
{{- end -}}

{{- define "phaseserve.modelMount" -}}
{{- if ne .Values.model.source "builtin" }}
- {name: model, mountPath: {{ .Values.model.mountPath | quote }}, readOnly: true}
{{- end }}
{{- end -}}

{{/* {root, gpu, resources}: fills the volume before anything else starts. */}}
{{- define "phaseserve.modelDownload" -}}
{{- $root := .root -}}
{{- $download := $root.Values.model.download -}}
{{- if eq $root.Values.model.source "download" }}
initContainers:
  - name: download
    image: {{ $download.image | default (include "phaseserve.image" .) | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- if not $download.command }}{{ fail "model.download.command: what fetches the model into model.mountPath" }}{{ end }}
    command: {{- toYaml $download.command | nindent 6 }}
    env:
      - {name: HOME, value: /tmp}
    {{- with $download.secret }}
    envFrom:
      - secretRef: {name: {{ . | quote }}}
    {{- end }}
    resources: {{- toYaml .resources | nindent 6 }}
    securityContext: {{- include "phaseserve.containerSecurity" (dict "ipcLock" false) | nindent 6 }}
    volumeMounts:
      - {name: model, mountPath: {{ $root.Values.model.mountPath | quote }}}
      - {name: tmp, mountPath: /tmp}
{{- end }}
{{- end -}}
