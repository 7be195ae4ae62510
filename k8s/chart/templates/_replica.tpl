{{/* {root, name, pool, selector}: the pod of a replica. KV goes to the pod's own address, unless another network is there
     for it: then transfer.device or transfer.host says which, or the route does. */}}
{{- define "phaseserve.replicaPod" -}}
{{- $root := .root -}}
{{- $pool := .pool -}}
{{- $transfer := $pool.settings.transfer | default dict -}}
{{- $gpu := gt (int $pool.gpu.count) 0 -}}
{{- $rdma := gt (int $pool.rdma.count) 0 -}}
{{- $ipcLock := and $rdma $pool.rdma.ipcLock -}}
serviceAccountName: {{ include "phaseserve.fullname" $root }}-replica
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "phaseserve.graceSeconds" (dict "preStop" $root.Values.preStopSeconds "drain" $pool.settings.replica.loop.drain_deadline_s) }}
{{- if $pool.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
securityContext: {{- include "phaseserve.podSecurity" $root | nindent 2 }}
{{- with include "phaseserve.scheduling" (dict "root" $root "pod" $pool "selector" .selector "spreadKey" $pool.spreadKey "rackKey" $pool.rackKey "runtimeClass" $pool.runtimeClass) | trim }}
{{- . | nindent 0 }}
{{- end }}
{{- with include "phaseserve.modelDownload" (dict "root" $root "gpu" $gpu "resources" $pool.resources) | trim }}
{{- . | nindent 0 }}
{{- end }}
containers:
  - name: replica
    image: {{ include "phaseserve.image" (dict "root" $root "gpu" $gpu) | quote }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    {{- if $ipcLock }}
    command: [/opt/phaseserve/bin/python-ipc-lock, -m, cli, replica]
    {{- else }}
    command: [phaseserve, replica]
    {{- end }}
    args: [--config, /etc/phaseserve/{{ .name }}.toml, --role, {{ .name }}, --id, $(POD_NAME), --host, $(POD_IP)
    {{- if not (or $pool.networks $transfer.host $transfer.device) }}, --set, transfer.host=$(POD_IP){{ end }}]
    ports:
      {{- range $port, $number := $pool.ports }}
      - {name: {{ $port }}, containerPort: {{ $number }}, protocol: TCP}
      {{- end }}
    env:
      {{- include "phaseserve.env" $root | nindent 6 }}
      {{- include "phaseserve.secretEnv" (dict "root" $root "secrets" (dict "PHASESERVE_CONTROL_SECRET" "control-secret" "PHASESERVE_FLEET_SECRET" "fleet-secret")) | trim | nindent 6 }}
      {{- with $pool.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    startupProbe: {{- include "phaseserve.startupProbe" (dict "model" $root.Values.model "path" "/health/startup" "port" "health") | nindent 6 }}
    livenessProbe:
      httpGet: {path: /health/live, port: health}
      periodSeconds: 10
      timeoutSeconds: 3
      failureThreshold: 3
      terminationGracePeriodSeconds: {{ include "phaseserve.graceSeconds" (dict "preStop" $root.Values.preStopSeconds "drain" 0) }}
    readinessProbe:
      httpGet: {path: /health/ready, port: health}
      periodSeconds: 3
      timeoutSeconds: 3
      failureThreshold: 1
    lifecycle: {{- include "phaseserve.lifecycle" $root | nindent 6 }}
    resources: {{- include "phaseserve.replicaResources" $pool | nindent 6 }}
    securityContext: {{- include "phaseserve.containerSecurity" (dict "ipcLock" $ipcLock) | nindent 6 }}
    volumeMounts:
      - {name: settings, mountPath: /etc/phaseserve/{{ .name }}.toml, subPath: {{ .name }}.toml, readOnly: true}
      - {name: cache, mountPath: /cache}
      - {name: tmp, mountPath: /tmp}
      - {name: shared-memory, mountPath: /dev/shm}
      {{- with include "phaseserve.modelMount" $root | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $root.Values.secrets.dataTls }}
      - {name: tls, mountPath: /etc/phaseserve/data-tls, readOnly: true}
      {{- end }}
      {{- if $pool.hugePages.amount }}
      - {name: huge-pages, mountPath: /dev/hugepages}
      {{- end }}
volumes:
  - name: settings
    configMap: {name: {{ include "phaseserve.fullname" $root }}-settings}
  - name: cache
    emptyDir: {sizeLimit: {{ $pool.cacheSize }}}
  - name: tmp
    emptyDir: {sizeLimit: 1Gi}
  - name: shared-memory
    emptyDir: {medium: Memory, sizeLimit: {{ $pool.sharedMemory }}}
  {{- with include "phaseserve.modelVolume" $root | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $root.Values.secrets.dataTls }}
  - name: tls
    secret: {secretName: {{ . | quote }}, defaultMode: 0440}
  {{- end }}
  {{- if $pool.hugePages.amount }}
  - name: huge-pages
    emptyDir: {medium: HugePages-{{ $pool.hugePages.size }}}
  {{- end }}
{{- end -}}

{{/* A pool's resources, with GPUs, RDMA devices and huge pages, which must be requested and limited alike. */}}
{{- define "phaseserve.replicaResources" -}}
{{- $devices := dict -}}
{{- if gt (int .gpu.count) 0 }}{{ $_ := set $devices .gpu.resource (toString .gpu.count) }}{{ end -}}
{{- if gt (int .rdma.count) 0 }}{{ $_ := set $devices .rdma.resource (toString .rdma.count) }}{{ end -}}
{{- with .hugePages.amount }}{{ $_ := set $devices (printf "hugepages-%s" $.hugePages.size) . }}{{ end -}}
{{- $resources := deepCopy .resources -}}
{{- range $side := list "requests" "limits" -}}
{{- $_ := set $resources $side (merge (deepCopy $devices) (get $resources $side | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
