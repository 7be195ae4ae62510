{{/* {root, pools}: what no schema can say. Fails naming the value. */}}
{{- define "phaseserve.checkPools" -}}
{{- $pools := .pools -}}
{{- $cluster := .root.Values.settings.cluster | default dict -}}
{{- $roles_move := dig "planner" "enabled" false $cluster -}}
{{- if not $pools }}{{ fail "pools: at least one pool needs replicas above 0, or scaling" }}{{ end -}}
{{- range $name, $pool := $pools -}}
{{- if gt (int $pool.scaling.min) (int $pool.scaling.max) -}}
{{- fail (printf "pools.%s: scaling.min %v is above scaling.max %v" $name $pool.scaling.min $pool.scaling.max) -}}
{{- end -}}
{{- if and (eq $pool.scaling.by "planner") (ne $name "alternating") (not $roles_move) -}}
{{- fail (printf "pools.%s: scaling.by planner: sizes are proposed for alternating replicas, of which none come to be here" $name) -}}
{{- end -}}
{{- if ne (len (values $pool.ports | uniq)) 3 }}{{ fail (printf "pools.%s: ports: control, data and health must differ" $name) }}{{ end -}}
{{- if and $pool.hostNetwork $pool.networks -}}
{{- fail (printf "pools.%s: hostNetwork and networks exclude each other" $name) -}}
{{- end -}}
{{- if and $pool.networks (hasKey $pool.podAnnotations "k8s.v1.cni.cncf.io/networks") -}}
{{- fail (printf "pools.%s: networks and podAnnotations both attach networks" $name) -}}
{{- end -}}
{{- end -}}
{{- $needed := get (dict "phased" (list "alternating") "disaggregated" (list "prefill" "decode")) (dig "layout" "auto" $cluster) | default list -}}
{{- if not $roles_move -}}
{{- range $needed -}}
{{- if not (hasKey $pools .) }}{{ fail (printf "settings.cluster.layout: %s needs replicas in pools.%s" $cluster.layout .) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .root.Values.router.autoscaling -}}
{{- if gt (int .min) (int .max) }}{{ fail (printf "router.autoscaling.min %v is above router.autoscaling.max %v" .min .max) }}{{ end -}}
{{- end -}}
{{- end -}}
