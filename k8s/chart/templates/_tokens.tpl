{{/* {root, name, pool}: what the size of a pool follows, as PromQL sums over its replicas. A router tells of every replica,
     so the largest of what the routers say counts; what waits at the routers counts for every pool that prefills. Where no
     router is scraped there is no value, and not 0, by which a busy pool would be made small. */}}
{{- define "phaseserve.poolQueries" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $routers := printf "namespace=%q,service=%q" $namespace (printf "%s-router" (include "phaseserve.fullname" .root)) -}}
{{- $replicas := printf "%s,replica=~%q" $routers (printf "%s-.+" .pool.fullname) -}}
{{- $most := dig "scheduling" "max_running" 64 .pool.settings -}}
{{- dict
  "backlog_seconds" (printf "(sum(max by (replica) (phaseserve_replica_backlog_seconds{%s})) or vector(0)) + sum(phaseserve_pending_prefill_seconds{%s})" $replicas $routers)
  "decode_occupancy" (printf "sum(max by (replica) (phaseserve_replica_running{%s})) / %v" $replicas $most) | toJson -}}
{{- end -}}

{{/* {name, pool}: metric -> the value per replica that is aimed at. Prefill replicas decode nothing, decode replicas have
     no prompts waiting. */}}
{{- define "phaseserve.poolTargets" -}}
{{- $scaling := .pool.scaling -}}
{{- $targets := dict -}}
{{- if and (gt (float64 $scaling.backlogSeconds) 0.0) (ne .name "decode") -}}
{{- $_ := set $targets "backlog_seconds" $scaling.backlogSeconds -}}
{{- end -}}
{{- if and (gt (float64 $scaling.decodeOccupancy) 0.0) (ne .name "prefill") -}}
{{- $_ := set $targets "decode_occupancy" $scaling.decodeOccupancy -}}
{{- end -}}
{{- if not $targets }}{{ fail (printf "pools.%s.scaling: backlogSeconds and decodeOccupancy are both 0: nothing to scale by" .name) }}{{ end -}}
{{- toJson $targets -}}
{{- end -}}

{{/* Grows at once; shrinks by one replica at a time, since each has to drain. */}}
{{- define "phaseserve.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{type: Percent, value: 100, periodSeconds: 60}]
scaleDown:
  stabilizationWindowSeconds: {{ .scaling.cooldownSeconds }}
  policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end -}}
