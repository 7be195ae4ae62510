{{/* {base, over}: lays one map on another in place, key by key. Unlike mergeOverwrite it also takes over false, 0 and "". */}}
{{- define "phaseserve.overlay" -}}
{{- $base := .base -}}
{{- range $key, $value := .over -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $base $key)) -}}
{{- include "phaseserve.overlay" (dict "base" (get $base $key) "over" $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $base $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The pools that are made, as JSON: name -> the values under `replica` with the pool's own on top. */}}
{{- define "phaseserve.pools" -}}
{{- $pools := dict -}}
{{- $root := . -}}
{{- range $name, $own := .Values.pools -}}
{{- $pool := deepCopy $root.Values.replica -}}
{{- include "phaseserve.overlay" (dict "base" $pool "over" $own) -}}
{{- if or (gt (int $pool.replicas) 0) (ne $pool.scaling.by "none") -}}
{{- $_ := set $pool "fullname" (printf "%s-%s" (include "phaseserve.fullname" $root) $name) -}}
{{- $settings := deepCopy $root.Values.settings -}}
{{- include "phaseserve.overlay" (dict "base" $settings "over" $pool.settings) -}}
{{- $_ := set $pool "settings" $settings -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- end -}}
{{- include "phaseserve.checkPools" (dict "root" . "pools" $pools) -}}
{{- toJson $pools -}}
{{- end -}}

{{/* {root, pool}: the settings of a pool's replicas, as JSON. The router's sections are left out, so that a change of
     theirs restarts no replica; of the cluster core what both cores must agree on. */}}
{{- define "phaseserve.replicaSettings" -}}
{{- $values := .root.Values -}}
{{- $settings := omit .pool.settings "router" "slo" "cluster" "simulate" -}}
{{- with .pool.settings.cluster -}}
{{- $shared := pick . "admission" "window_chunking" "max_gap_s" -}}
{{- if $shared }}{{ $_ := set $settings "cluster" $shared }}{{ end -}}
{{- if and .planner .planner.enabled -}}
{{- $ours := dict "replica" (dict "roles_may_change" true) -}}
{{- include "phaseserve.overlay" (dict "base" $ours "over" $settings) -}}
{{- $settings = $ours -}}
{{- end -}}
{{- end -}}
{{- $ours := dict "model" $values.model.name
  "replica" (dict "port" .pool.ports.control "health_port" .pool.ports.health)
  "transfer" (dict "port" .pool.ports.data) -}}
{{- if $values.secrets.dataTls -}}
{{- range $setting, $file := dict "tls_cert" "tls.crt" "tls_key" "tls.key" "tls_ca" "ca.crt" -}}
{{- $_ := set $ours.transfer $setting (printf "/etc/phaseserve/data-tls/%s" $file) -}}
{{- end -}}
{{- end -}}
{{- if not (or (gt (int .pool.gpu.count) 0) (dig "engine" "threads" 0 $settings)) -}}
{{- $_ := set $ours "engine" (dict "threads" (include "phaseserve.cpus" .pool.resources | int)) -}}
{{- end -}}
{{- include "phaseserve.overlay" (dict "base" $settings "over" $ours) -}}
{{- toJson $settings -}}
{{- end -}}

{{/* Whole CPUs that a container asks for: torch would otherwise start a thread for each of the machine's. */}}
{{- define "phaseserve.cpus" -}}
{{- $cpu := dig "requests" "cpu" (dig "limits" "cpu" "1" .) . | toString -}}
{{- if hasSuffix "m" $cpu }}{{ max 1 (ceil (divf (float64 (trimSuffix "m" $cpu)) 1000) | int) }}{{ else }}{{ max 1 (ceil (float64 $cpu) | int) }}{{ end -}}
{{- end -}}

{{/* The router's settings, as JSON. */}}
{{- define "phaseserve.routerSettings" -}}
{{- $values := .Values -}}
{{- $settings := dict "router" (dict "host" "0.0.0.0") -}}
{{- include "phaseserve.overlay" (dict "base" $settings "over" (deepCopy (omit $values.settings "engine" "transfer" "replica" "simulate" "scheduling"))) -}}
{{- with $values.settings.scheduling -}}
{{- $shared := pick . "admission" "window_chunking" "max_gap_s" -}}
{{- if $shared }}{{ $_ := set $settings "scheduling" $shared }}{{ end -}}
{{- end -}}
{{- $_ := set $settings "model" $values.model.name -}}
{{- $_ := set $settings.router "port" $values.router.port -}}
{{- $_ := set $settings.router "discovery" "kubernetes" -}}
{{- if $values.secrets.routerTls -}}
{{- $_ := set $settings.router "tls_cert" "/etc/phaseserve/router-tls/tls.crt" -}}
{{- $_ := set $settings.router "tls_key" "/etc/phaseserve/router-tls/tls.key" -}}
{{- end -}}
{{- with $values.model.servedNames }}{{ $_ := set $settings.router "served_names" . }}{{ end -}}
{{- include "phaseserve.overlay" (dict "base" $settings "over" (dict "kubernetes" (include "phaseserve.kubernetesSettings" . | fromJson))) -}}
{{- toJson $settings -}}
{{- end -}}

{{/* The section `kubernetes` of the router's settings (k8s/config.py), as JSON. */}}
{{- define "phaseserve.kubernetesSettings" -}}
{{- $terms := list -}}
{{- range $name, $value := include "phaseserve.selector" (dict "root" . "component" "replica") | fromYaml -}}
{{- $terms = append $terms (printf "%s=%s" $name $value) -}}
{{- end -}}
{{- $pools := list -}}
{{- range $name, $pool := include "phaseserve.pools" . | fromJson -}}
{{- if eq $pool.scaling.by "planner" -}}
{{- $pools = append $pools (dict "workload" $pool.fullname "kind" $pool.kind "role" $name "min_replicas" $pool.scaling.min "max_replicas" $pool.scaling.max) -}}
{{- end -}}
{{- end -}}
{{- $lease := float64 .Values.kubernetes.leaseSeconds -}}
{{- $election := dict "enabled" true "lease" (printf "%s-fleet" (include "phaseserve.fullname" .))
  "duration_s" $lease "deadline_s" (divf (mulf $lease 2) 3) "retry_s" (divf $lease 7.5) -}}
{{- $scaling := dict "enabled" (gt (len $pools) 0) "pools" $pools "cooldown_s" .Values.kubernetes.scalingCooldownSeconds
  "drain_s" .Values.settings.replica.loop.drain_deadline_s -}}
{{- dict "namespace" .Release.Namespace "selector" (join "," $terms) "label_roles" .Values.kubernetes.labelRoles
  "election" $election "scaling" $scaling | toJson -}}
{{- end -}}

{{/* {table, path}: a map as TOML. Helm's own toToml would write 8000 as 8000.0. */}}
{{- define "phaseserve.toml" -}}
{{- $path := .path -}}
{{- $lines := list -}}
{{- range $key, $value := .table -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) -}}
{{- $lines = append $lines (printf "%s = %s" (include "phaseserve.tomlKey" $key) (include "phaseserve.tomlValue" $value)) -}}
{{- end -}}
{{- end -}}
{{- if and $path $lines }}
[{{ $path }}]
{{ end -}}
{{- range $lines }}{{ . }}
{{ end -}}
{{- range $key, $value := .table -}}
{{- if kindIs "map" $value -}}
{{- $name := include "phaseserve.tomlKey" $key -}}
{{- include "phaseserve.toml" (dict "table" $value "path" (ternary (printf "%s.%s" $path $name) $name (ne $path ""))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "phaseserve.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }}, {{ else }} {{ end }}{{ include "phaseserve.tomlKey" $key }} = {{ include "phaseserve.tomlValue" (get $ $key) }}{{ end }} }
{{- else if kindIs "slice" . -}}
[{{ range $index, $value := . }}{{ if $index }}, {{ end }}{{ include "phaseserve.tomlValue" $value }}{{ end }}]
{{- else -}}
{{- toRawJson . -}}
{{- end -}}
{{- end -}}

{{- define "phaseserve.tomlKey" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ toRawJson . }}{{ end -}}
{{- end -}}
