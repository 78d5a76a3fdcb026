#!/bin/sh
# prometheusrule.sh FILE... prints the rule files as one PrometheusRule, for the Prometheus operator:
#   deploy/prometheus/prometheusrule.sh deploy/prometheus/rules/{working,daemon,database,backlog,downstream,verdicts,archive}.yml | kubectl apply -f -
set -eu
: "${1:?usage: prometheusrule.sh FILE...}"
cat <<'END'
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: reconciler
  labels:
    app.kubernetes.io/name: reconciler
spec:
  groups:
END
for file; do
	sed -n '/^groups:/,$ { /^groups:/d; s/^\(..*\)$/  \1/; p; }' "$file"
done
