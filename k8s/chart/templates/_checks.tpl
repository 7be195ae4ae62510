{{/* {root, pools}: what no schema can say. Fails naming the value. */}}
{{- define "phaseserve.checkPools" -}}
{{- $pools := .pools -}}
{{- if not $pools }}{{ fail "pools: at least one pool needs replicas above 0, or scaling" }}{{ end -}}
{{- range $name, $pool := $pools -}}
{{- if gt (int $pool.scaling.min) (int $pool.scaling.max) -}}
{{- fail (printf "pools.%s: scaling.min %v is above scaling.max %v" $name $pool.scaling.min $pool.scaling.max) -}}
{{- end -}}
{{- if ne (len (values $pool.ports | uniq)) 3 }}{{ fail (printf "pools.%s: ports: control, data and health must differ" $name) }}{{ end -}}
{{- if and $pool.hostNetwork $pool.networks -}}
{{- fail (printf "pools.%s: hostNetwork and networks exclude each other" $name) -}}
{{- end -}}
{{- end -}}
{{- $cluster := .root.Values.settings.cluster | default dict -}}
{{- $needed := get (dict "phased" (list "alternating") "disaggregated" (list "prefill" "decode")) (dig "layout" "auto" $cluster) | default list -}}
{{- if not (dig "planner" "enabled" false $cluster) -}}
{{- range $needed -}}
{{- if not (hasKey $pools .) }}{{ fail (printf "settings.cluster.layout: %s needs replicas in pools.%s" $cluster.layout .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .root.Values.router.autoscaling -}}
{{- if gt (int .min) (int .max) }}{{ fail (printf "router.autoscaling.min %v is above router.autoscaling.max %v" .min .max) }}{{ end -}}
{{- end -}}
{{- end -}}
