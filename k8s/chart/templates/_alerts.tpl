{{/* Alerts on what the routers measure. Targets and bounds are those of the settings. */}}
{{- define "phaseserve.alerts" -}}
{{- $of := printf "namespace=%q,service=%q" .Release.Namespace (printf "%s-router" (include "phaseserve.fullname" .)) -}}
{{- $slo := .Values.settings.slo -}}
- alert: PhaseServeNoReplica
  expr: absent(phaseserve_replica_view_age_seconds{ {{- $of -}} })
  for: 2m
  labels: {severity: critical}
  annotations:
    summary: No router knows a replica
    description: Every request waits and is then refused. Look at the replicas' pods and at the routers' logs.
- alert: PhaseServeReplicaSilent
  expr: min by (replica) (phaseserve_replica_view_age_seconds{ {{- $of -}} }) > 5
  for: 1m
  labels: {severity: warning}
  annotations:
    summary: "No router heard of {{ "{{ $labels.replica }}" }} for {{ "{{ $value | humanizeDuration }}" }}"
    description: It gets no requests. Its liveness probe restarts it if it hangs; a network policy or partition keeps it silent.
- alert: PhaseServeTTFTOverTarget
  expr: histogram_quantile(0.9, sum by (le) (rate(phaseserve_ttft_seconds_bucket{ {{- $of -}} }[5m]))) > {{ $slo.ttft_s }}
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "P90 of time to first token is {{ "{{ $value | humanizeDuration }}" }}, target {{ $slo.ttft_s }} s"
    description: More prompts come than are prefilled in time. Add replicas, or see /decisions for what they wait for.
- alert: PhaseServeTPOTOverTarget
  expr: histogram_quantile(0.9, sum by (le) (rate(phaseserve_tpot_seconds_bucket{ {{- $of -}} }[5m]))) > {{ $slo.tpot_s }}
  for: 10m
  labels: {severity: warning}
  annotations:
    summary: "P90 of time per output token is {{ "{{ $value | humanizeDuration }}" }}, target {{ $slo.tpot_s }} s"
    description: Decode steps take too long or streams wait for others' prefills. Look at decode step time and overdraft.
- alert: PhaseServeRefusing
  expr: sum(rate(phaseserve_requests_total{ {{- $of -}} ,outcome=~"overloaded|unavailable|deadline"}[5m])) / sum(rate(phaseserve_requests_total{ {{- $of -}} }[5m])) > 0.05
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $value | humanizePercentage }}" }} of requests are refused for want of capacity"
    description: The pending queue is full or its deadline passes. Add replicas.
- alert: PhaseServeErrors
  expr: sum(rate(phaseserve_requests_total{ {{- $of -}} ,outcome="error"}[5m])) / sum(rate(phaseserve_requests_total{ {{- $of -}} }[5m])) > 0.01
  for: 5m
  labels: {severity: critical}
  annotations:
    summary: "{{ "{{ $value | humanizePercentage }}" }} of requests end with an error of ours"
    description: The routers' and replicas' logs name it.
- alert: PhaseServeHandoffsFail
  expr: sum(rate(phaseserve_handoffs_total{ {{- $of -}} ,outcome="failed"}[10m])) / sum(rate(phaseserve_handoffs_total{ {{- $of -}} ,outcome=~"completed|failed"}[10m])) > 0.05
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: "{{ "{{ $value | humanizePercentage }}" }} of KV hand-offs fail"
    description: Prompts are computed twice. Look at phaseserve_link_usable, the links in /fleet, and the network policy.
- alert: PhaseServeKVDamaged
  expr: sum by (replica) (increase(phaseserve_replica_checksum_errors_total{ {{- $of -}} }[15m])) > 0
  labels: {severity: critical}
  annotations:
    summary: "KV arrived changed at {{ "{{ $labels.replica }}" }}"
    description: It was refused and computed anew, but memory, card or driver on the way is not sound.
- alert: PhaseServeLinkUnusable
  expr: min by (replica, peer) (phaseserve_link_usable{ {{- $of -}} }) == 0
  for: 5m
  labels: {severity: warning}
  annotations:
    summary: "KV cannot go from {{ "{{ $labels.replica }}" }} to {{ "{{ $labels.peer }}" }}"
    description: /fleet says why. With transfer.require = rdma a link on which only TCP came up is refused.
{{- end -}}
