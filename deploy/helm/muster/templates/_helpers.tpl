{{/* Prefix of the names of all objects. */}}
{{- define "muster.name" -}}
{{ .Release.Name }}
{{- end }}

{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels of the pods of one program. Call with (list . "webhook"). */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "muster.image" -}}
{{- with .Values.image.digest -}}
{{ $.Values.image.repository }}@{{ . }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Port of an address IP:PORT. */}}
{{- define "muster.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}

{{/* Flags that every program has. Call with (list . ADMIN-ADDRESS). */}}
{{- define "muster.serveArgs" -}}
- --admin-addr={{ index . 1 }}
- --log-level={{ (index . 0).Values.logLevel }}
- --log-format={{ (index . 0).Values.logFormat }}
{{- end }}

{{- define "muster.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end }}

{{/* Of programs that need nothing of their node. */}}
{{- define "muster.unprivileged" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Two replicas on one node fall together. Call with (list . "webhook"). */}}
{{- define "muster.spread" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "muster.selector" . | nindent 12 }}
{{- end }}

{{/* Namespaces whose pods are none of Muster's business: a JSON list. */}}
{{- define "muster.excludedNamespaces" -}}
{{ append .Values.excludedNamespaces .Release.Namespace | uniq | sortAlpha | toJson }}
{{- end }}

{{/* Names that a certificate is valid for. Call with (list . "webhook" MORE-NAMES). */}}
{{- define "muster.tlsNames" -}}
{{- $root := index . 0 -}}
{{- $host := printf "%s-%s.%s.svc" (include "muster.name" $root) (index . 1) $root.Release.Namespace -}}
{{ concat (list $host (printf "%s.cluster.local" $host)) (index . 2) | uniq | join "," }}
{{- end }}

{{/* CEL over `object`, a Pod: whether it is managed. Generated from muster_cluster::managed for one stand-in
     resource; the chart's list is put in its place. */}}
{{- define "muster.managedCel" -}}
{{- $terms := list -}}
{{- range .Values.managedResources -}}
{{- if hasSuffix "*" . -}}
{{- $terms = append $terms (printf "r.startsWith('%s')" (trimSuffix "*" .)) -}}
{{- else -}}
{{- $terms = append $terms (printf "r == '%s'" .) -}}
{{- end -}}
{{- end -}}
{{ .Files.Get "files/managed.cel" | trim | replace "r == 'muster.dev/listed-resource'" ($terms | join " || " | default "false") }}
{{- end }}

{{/* CEL over `object`: whether its own annotations carry the shorthand for a claim. */}}
{{- define "muster.shorthandCel" -}}
(has(object.metadata.annotations) && ['muster.dev/gpus', 'muster.dev/vram', 'muster.dev/interconnect', 'muster.dev/container'].exists(k, k in object.metadata.annotations))
{{- end }}

{{/* CEL over `object`, a Pod: whether it carries our gate and names no node. Generated likewise. */}}
{{- define "muster.gatedCel" -}}
{{ .Files.Get "files/gated.cel" | trim }}
{{- end }}

{{- define "muster.controllerUsername" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "muster.name" . }}-controller
{{- end }}

{{/* Mutating webhooks are called in the order of the names of their configurations, and one that is not called at first
     is not called again after a later one. So ours sorts last: a claim that another one adds is seen. */}}
{{- define "muster.mutatingConfiguration" -}}
zz-{{ include "muster.name" . }}
{{- end }}

{{- define "muster.driverUsername" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "muster.name" . }}-driver
{{- end }}

{{/* Binding of a policy of the same name. Call with (list . "muster-pod-gate" ABOUT), where ABOUT is one of
     * "workloads": what users do with their pods. It denies in Enforce and only audits in Observe, and does not hold in
       namespaces that are none of Muster's business (by the label that only the API server writes).
     * "muster": Muster's own objects and identities, and who pays. It always denies and holds everywhere: what somebody
       forges in Observe would count in Enforce. */}}
{{- define "muster.policyBinding" -}}
{{- $root := index . 0 }}
{{- $workloads := eq (index . 2) "workloads" }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ index . 1 }}
  labels: {{- include "muster.labels" $root | nindent 4 }}
spec:
  policyName: {{ index . 1 }}
  validationActions: {{ if and $workloads (eq $root.Values.mode "Observe") }}[Audit]{{ else }}[Deny]{{ end }}
  {{- if $workloads }}
  matchResources:
    namespaceSelector:
      matchExpressions:
      - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ include "muster.excludedNamespaces" $root }}}
  {{- end }}
{{- end }}

{{/* CEL: whether the request is the controller's. */}}
{{- define "muster.byController" -}}
request.userInfo.username == '{{ include "muster.controllerUsername" . }}'
{{- end }}

{{/* CEL lists of the keys that only the controller writes, and of those that are fixed once the pod exists. */}}
{{- define "muster.controllerAnnotations" -}}
['muster.dev/rank', 'muster.dev/attempt', 'muster.dev/admitted-count', 'muster.dev/gang-name', 'muster.dev/placement', 'muster.dev/preempt-at']
{{- end }}
{{- define "muster.fixedLabels" -}}
['muster.dev/gang', 'muster.dev/tier']
{{- end }}
{{- define "muster.fixedAnnotations" -}}
['muster.dev/gang-size', 'muster.dev/min-count', 'muster.dev/start-timeout-seconds', 'muster.dev/failure-grace-seconds', 'muster.dev/max-runtime-seconds', 'muster.dev/topology-required', 'muster.dev/topology-preferred', 'muster.dev/gpus', 'muster.dev/vram', 'muster.dev/interconnect', 'muster.dev/container']
{{- end }}

{{/* The annotation of a Job that Muster suspended: its own suspension can be told from a user's. */}}
{{- define "muster.suspensionAnnotation" -}}
muster.dev/suspended-for
{{- end }}

{{/* CEL: whether every one of these keys is the same in variables old and new. Call with (list "labels" KEYS). */}}
{{- define "muster.unchanged" -}}
{{ index . 1 }}.all(k, (k in variables.{{ index . 0 }}) == (k in variables.old_{{ index . 0 }}) && (!(k in variables.{{ index . 0 }}) || variables.{{ index . 0 }}[k] == variables.old_{{ index . 0 }}[k]))
{{- end }}

{{/* CEL: whether a map is the same as another but for some of its keys. Call with (list "object.spec" "oldObject.spec"
     "k == 'affinity'"); the last says which keys do not matter. */}}
{{- define "muster.sameBut" -}}
({{ index . 0 }}.all(k, {{ index . 2 }} || (k in {{ index . 1 }} && {{ index . 0 }}[k] == {{ index . 1 }}[k])) && {{ index . 1 }}.all(k, {{ index . 2 }} || k in {{ index . 0 }}))
{{- end }}

{{/* CEL variables: labels and annotations as they are and as they were. */}}
{{- define "muster.metadataVariables" -}}
{{- range $object, $prefix := dict "object" "" "oldObject" "old_" }}
{{- range $field := list "labels" "annotations" }}
- name: {{ $prefix }}{{ $field }}
  expression: "{{ $object }} != null && has({{ $object }}.metadata.{{ $field }}) ? {{ $object }}.metadata.{{ $field }} : {}"
{{- end }}
{{- end }}
{{- end }}
