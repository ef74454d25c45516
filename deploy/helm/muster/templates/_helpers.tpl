{{/* Prefix of the names of all objects: the release's name, with the chart's behind it where it does not say so itself. A release may have dots
     in its name, and a Service none. */}}
{{- define "muster.fullname" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name -}}
{{- if contains .Chart.Name .Release.Name }}{{ $name = .Release.Name }}{{ end -}}
{{- .Values.fullnameOverride | default $name | replace "." "-" | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The driver needs a namespace that allows privileged pods. */}}
{{- define "muster.driverNamespace" -}}
{{ .Values.driver.namespace | default .Release.Namespace }}
{{- end }}

{{/* Labels of an object. A version may hold a `+`, and a label none. */}}
{{- define "muster.labels" -}}
{{- include "muster.labelsAnd" (list . dict) }}
{{- end }}

{{/* The same with further ones, which win over commonLabels: nothing may be named twice. Call with (list . LABELS). */}}
{{- define "muster.labelsAnd" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | replace "+" "_" | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with merge dict (index . 1 | default dict) ($root.Values.commonLabels | default dict) }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of the pods of one program. Call with (list . "webhook"). */}}
{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Image of a program. Call with (list . "controller" "controller"): the part of its name behind the repository, and its
     key in image.digests. */}}
{{- define "muster.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $repository := printf "%s-%s" $image.repository (index . 1) -}}
{{- with index $image.digests (index . 2) -}}
{{ $repository }}@{{ . }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}
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

{{/* Labels and annotations of the pods of a program. Call with (list . "webhook" ANNOTATIONS), the last of them optional. */}}
{{- define "muster.podMetadata" -}}
{{- $values := index (index . 0).Values (index . 1) -}}
{{- $own := dict -}}
{{- if eq (len .) 3 }}{{ $own = index . 2 }}{{ end -}}
labels:
  {{- include "muster.selector" . | nindent 2 }}
  {{- with merge dict ($values.podLabels | default dict) ((index . 0).Values.commonLabels | default dict) }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge $own ($values.podAnnotations | default dict) }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Where and as whom the pods of a program run. Call with (list . "webhook"); a third element names another ServiceAccount than
     the program's. Two replicas on one node fall together, so they are kept apart unless an affinity is given. */}}
{{- define "muster.podPlacement" -}}
{{- $root := index . 0 -}}
{{- $values := index $root.Values (index . 1) -}}
serviceAccountName: {{ include "muster.fullname" $root }}-{{ last . }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if $values.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- if $values.affinity }}
affinity: {{- toYaml $values.affinity | nindent 2 }}
{{- else if ne (index . 1) "driver" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "muster.selector" . | nindent 12 }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* How the pods of a Deployment are exchanged. Never fewer than before: without the webhook no GPU pod is created, without the extender none is
     bound. On the node's network a pod has its ports alone, so that where each node of its choice has one already a further pod is never
     placed, and the exchange would never end: one of the old ones goes first. Call with (list . "webhook"). */}}
{{- define "muster.strategy" -}}
{{- $hostNetwork := (index (index . 0).Values (index . 1)).hostNetwork -}}
strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: {{ $hostNetwork | ternary 1 0 }}, maxSurge: 1}}
{{- end }}

{{/* Whether pods get a scheduler of Muster's own, and its name. */}}
{{- define "muster.schedulerName" -}}
{{- if .Values.scheduler.enabled -}}
{{ .Values.schedulerName | default (printf "%s-scheduler" (include "muster.fullname" .)) }}
{{- else -}}
{{ .Values.schedulerName }}
{{- end -}}
{{- end }}

{{/* Lease of the scheduler that managed pods get: NAMESPACE/NAME. */}}
{{- define "muster.schedulerLease" -}}
{{- if .Values.scheduler.enabled -}}
{{ .Release.Namespace }}/{{ include "muster.schedulerName" . }}
{{- else -}}
kube-system/kube-scheduler
{{- end -}}
{{- end }}

{{/* Namespaces whose pods are none of Muster's business: a JSON list. */}}
{{- define "muster.excludedNamespaces" -}}
{{ concat (.Values.excludedNamespaces | default list) (list .Release.Namespace (include "muster.driverNamespace" .)) | uniq | sortAlpha | toJson }}
{{- end }}

{{/* Namespaces whose pods may come to GPUs by a side door: a JSON list. */}}
{{- define "muster.sideDoorNamespaces" -}}
{{ concat (include "muster.excludedNamespaces" . | fromJsonArray) (.Values.sideDoors.exceptedNamespaces | default list) | uniq | sortAlpha | toJson }}
{{- end }}

{{/* Names that a certificate is valid for. Call with (list . "webhook" MORE-NAMES). */}}
{{- define "muster.tlsNames" -}}
{{- $root := index . 0 -}}
{{- $host := printf "%s-%s.%s.svc" (include "muster.fullname" $root) (index . 1) $root.Release.Namespace -}}
{{ concat (list $host (printf "%s.cluster.local" $host)) (index . 2 | default list) | uniq | join "," }}
{{- end }}

{{/* The extended resources that stand for devices, one that the class of whole GPUs stands behind included, as JSON. */}}
{{- define "muster.managedResources" -}}
{{- $named := .Values.deviceClasses.gpu.extendedResourceName | default "" }}
{{- concat (.Values.managedResources | default list) (ternary (list $named) list (ne $named "")) | uniq | toJson -}}
{{- end }}

{{/* CEL over `object`, a Pod, from a file that is generated from muster_cluster::managed for one stand-in resource; the chart's
     list is put in its place. Call with (list . "files/managed.cel"). */}}
{{- define "muster.deviceCel" -}}
{{- $root := index . 0 -}}
{{- $terms := list -}}
{{- range include "muster.managedResources" $root | fromJsonArray -}}
{{- if hasSuffix "*" . -}}
{{- $terms = append $terms (printf "r.startsWith('%s')" (trimSuffix "*" .)) -}}
{{- else -}}
{{- $terms = append $terms (printf "r == '%s'" .) -}}
{{- end -}}
{{- end -}}
{{ $root.Files.Get (index . 1) | trim | replace "r == 'muster.dev/listed-resource'" ($terms | join " || " | default "false") }}
{{- end }}

{{/* Whether it is managed. */}}
{{- define "muster.managedCel" -}}
{{ include "muster.deviceCel" (list . "files/managed.cel") }}
{{- end }}

{{/* Whether it asks for devices. A pod is managed also for its label muster.dev/gang alone; then it is charged for none. */}}
{{- define "muster.devicesCel" -}}
{{ include "muster.deviceCel" (list . "files/devices.cel") }}
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
system:serviceaccount:{{ .Release.Namespace }}:{{ include "muster.fullname" . }}-controller
{{- end }}

{{/* Mutating webhooks are called in the order of the names of their configurations, and one that is not called at first
     is not called again after a later one. So ours sorts last: a claim that another one adds is seen. */}}
{{- define "muster.mutatingConfiguration" -}}
zz-{{ include "muster.fullname" . }}
{{- end }}

{{- define "muster.driverUsername" -}}
system:serviceaccount:{{ include "muster.driverNamespace" . }}:{{ include "muster.fullname" . }}-driver
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

{{/* CEL: whether who asks may bind pods in the namespace, as schedulers may: kube-scheduler, whatever it is called here. */}}
{{- define "muster.bindsPods" -}}
authorizer.group('').resource('pods').subresource('binding').namespace(request.namespace).check('create').allowed()
{{- end }}

{{/* CEL lists of the keys that only the controller writes, and of those that are fixed once the pod exists. */}}
{{- define "muster.controllerAnnotations" -}}
['muster.dev/rank', 'muster.dev/attempt', 'muster.dev/admitted-count', 'muster.dev/gang-name', 'muster.dev/placement', 'muster.dev/preempt-at']
{{- end }}
{{- define "muster.fixedLabels" -}}
['muster.dev/gang', 'muster.dev/tier']
{{- end }}
{{- define "muster.fixedAnnotations" -}}
['muster.dev/gang-size', 'muster.dev/min-count', 'muster.dev/start-timeout-seconds', 'muster.dev/failure-grace-seconds', 'muster.dev/max-runtime-seconds', 'muster.dev/max-restarts', 'muster.dev/progress-deadline-seconds', 'muster.dev/topology-required', 'muster.dev/topology-preferred', 'muster.dev/gpus', 'muster.dev/vram', 'muster.dev/interconnect', 'muster.dev/container']
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

{{/* Whether a program runs at all. Call with (list . "extender"); empty if it does not. */}}
{{- define "muster.runs" -}}
{{- if ne (index (index . 0).Values (index . 1) "enabled" | toString) "false" }}yes{{ end -}}
{{- end }}

{{/* What the second kube-scheduler is started with. */}}
{{- define "muster.schedulerConfiguration" }}
{{- $scheduler := include "muster.schedulerName" . }}
{{- $extender := printf "%s-extender" (include "muster.fullname" .) }}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {qps: {{ .Values.scheduler.qps }}, burst: {{ .Values.scheduler.burst }}}
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace | quote }}
  resourceName: {{ $scheduler | quote }}
profiles:
- schedulerName: {{ $scheduler | quote }}
extenders:
- urlPrefix: {{ .Values.extender.urlOverride | default (printf "https://%s.%s.svc:443" $extender .Release.Namespace) }}/scheduler
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  weight: 20
  enableHTTPS: true
  tlsConfig:
    caFile: /etc/muster/extender/ca.crt
    certFile: /etc/muster/extender/client.crt
    keyFile: /etc/muster/extender/client.key
  httpTimeout: 1s
  nodeCacheCapable: true
  managedResources: [{name: muster.dev/managed}]
  ignorable: false
{{- end }}

{{/* Annotations of what `helm test` needs beside its pods: made before them, and gone after them. */}}
{{- define "muster.testObject" -}}
helm.sh/hook: test
helm.sh/hook-weight: "-2"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}

{{/* A Job that looks before Helm does something, and an account with the rights to read what it looks at. All of it is there only
     meanwhile, so that it is there also where nothing else is: before the first install, or after one that failed. Call with
     (dict "root" . "name" "check-uninstall" "hook" HOOKS "rules" RULES "args" ARGS "seconds" SECONDS). */}}
{{- define "muster.check" -}}
{{- $root := .root }}
{{- $check := . }}
{{- $namespace := $root.Release.Namespace }}
{{- $name := printf "%s-%s" (include "muster.fullname" $root) .name }}
{{- range $kind := list "ServiceAccount" "ClusterRole" "ClusterRoleBinding" ($root.Values.openshift.enabled | ternary "RoleBinding" "") | compact }}
apiVersion: {{ eq $kind "ServiceAccount" | ternary "v1" "rbac.authorization.k8s.io/v1" }}
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  {{- if not (hasPrefix "Cluster" $kind) }}
  namespace: {{ $namespace | quote }}
  {{- end }}
  labels: {{- include "muster.labels" $root | nindent 4 }}
  annotations:
    helm.sh/hook: {{ $check.hook }}
    helm.sh/hook-weight: "-2"
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- if eq $kind "ClusterRole" }}
rules: {{- toYaml $check.rules | nindent 0 }}
{{- else if hasSuffix "Binding" $kind }}
{{- /* On OpenShift it names its user, which `restricted-v2` does not allow. */}}
{{- $role := eq $kind "RoleBinding" | ternary "system:openshift:scc:nonroot-v2" $name }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "{{ $role }}"}
subjects: [{kind: ServiceAccount, name: {{ $name }}, namespace: {{ $namespace | quote }}}]
{{- end }}
---
{{- end }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ $namespace | quote }}
  labels: {{- include "muster.labels" $root | nindent 4 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-weight: "-1"
    # A failed one is kept: its events say why it did not run.
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
    # Helm prints what it says.
    helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
spec:
  backoffLimit: 0
  # Less than the five minutes that Helm waits.
  activeDeadlineSeconds: {{ .seconds }}
  template:
    metadata:
      labels:
        # Not `muster`: it has no metrics.
        app.kubernetes.io/name: muster-{{ .name }}
        app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
        {{- with $root.Values.commonLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      restartPolicy: Never
      {{- include "muster.podPlacement" (list $root "controller" .name) | nindent 6 }}
      containers:
      - name: check
        image: {{ include "muster.image" (list $root "controller" "controller") }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        command: [/muster-controller]
        args: {{- toYaml .args | nindent 8 }}
        resources:
          requests: {cpu: 10m, memory: 64Mi}
          limits: {memory: 512Mi}
        securityContext: {{- include "muster.unprivileged" $root | nindent 10 }}
{{- end }}
