package deploy

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryManifestIsPartOfAKustomization(t *testing.T) {
	t.Parallel()
	type kustomization struct {
		APIVersion         string           `yaml:"apiVersion"`
		Kind               string           `yaml:"kind"`
		Resources          []string         `yaml:"resources"`
		ConfigMapGenerator []map[string]any `yaml:"configMapGenerator"`
		Images             []map[string]any `yaml:"images"`
	}
	for _, file := range files(t, "kubernetes/*/kustomization.yaml") {
		dir := filepath.Dir(file)
		all := documents[kustomization](t, file)
		if len(all) != 1 || all[0].Kind != "Kustomization" {
			t.Fatalf("%s is not one Kustomization", file)
		}
		for _, resource := range all[0].Resources {
			if _, err := os.Stat(filepath.Join(dir, resource)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		for _, manifest := range files(t, dir+"/*.yaml") {
			name := filepath.Base(manifest)
			if name != "kustomization.yaml" && name != "reconciler.yaml" && !slices.Contains(all[0].Resources, name) {
				t.Errorf("%s is in no kustomization", manifest)
			}
		}
	}
}

// at walks down a decoded document.
func at(t *testing.T, from any, path ...string) any {
	t.Helper()
	for _, step := range path {
		if list, ok := from.([]any); ok && len(list) > 0 {
			from = list[0]
		}
		m, ok := from.(map[string]any)
		if !ok || m[step] == nil {
			t.Fatalf("there is no %s of %v", step, path)
		}
		from = m[step]
	}
	return from
}

func TestEveryPodIsLockedDownAlike(t *testing.T) {
	t.Parallel()
	pods := map[string]any{}
	for file, path := range map[string][]string{
		"kubernetes/daemon/deployment.yaml": {"spec", "template", "spec"},
		"kubernetes/oneoff/cronjob.yaml":    {"spec", "jobTemplate", "spec", "template", "spec"},
		"kubernetes/archive/cronjob.yaml":   {"spec", "jobTemplate", "spec", "template", "spec"},
		"kubernetes/migrate/job.yaml":       {"spec", "template", "spec"},
	} {
		pods[file] = at(t, documents[map[string]any](t, file)[0], path...)
	}
	for _, file := range slices.Sorted(maps.Keys(pods)) {
		pod, model := pods[file], pods["kubernetes/daemon/deployment.yaml"]
		for _, path := range [][]string{
			{"securityContext"},
			{"containers", "securityContext"},
			{"containers", "resources"},
			{"containers", "image"},
		} {
			if diff := cmp.Diff(at(t, model, path...), at(t, pod, path...)); diff != "" {
				t.Errorf("%s has another %v: %s", file, path, diff)
			}
		}
		for fault, absent := range map[string]bool{
			"runs as root":                    at(t, pod, "securityContext", "runAsNonRoot") == true,
			"can write its root file system":  at(t, pod, "containers", "securityContext", "readOnlyRootFilesystem") == true,
			"has a token for Kubernetes":      at(t, pod, "automountServiceAccountToken") == false,
			"gets variables of every Service": at(t, pod, "enableServiceLinks") == false,
		} {
			if !absent {
				t.Errorf("%s %s", file, fault)
			}
		}
	}
}

func TestAHeldLeaseIsNoFailureOfAJobAndAUnit(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"kubernetes/oneoff/cronjob.yaml", "kubernetes/archive/cronjob.yaml"} {
		job := at(t, documents[map[string]any](t, file)[0], "spec", "jobTemplate", "spec")
		actions := map[uint64]string{}
		for _, one := range at(t, job, "podFailurePolicy", "rules").([]any) {
			r := one.(map[string]any)
			if r["onExitCodes"] == nil {
				continue
			}
			for _, code := range at(t, r, "onExitCodes", "values").([]any) {
				actions[code.(uint64)] = r["action"].(string)
			}
		}
		if diff := cmp.Diff(map[uint64]string{2: "FailJob", 4: "Ignore"}, actions); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
	for _, unit := range []string{"systemd/reconciler-run.service", "systemd/reconciler-archive.service"} {
		if ok := directives(t, unit)["SuccessExitStatus"]; !slices.Equal(ok, []string{"3 4"}) {
			t.Errorf("%s: SuccessExitStatus is %q", unit, ok)
		}
	}
}

func TestTheJobOfPrometheusIsTheOneTheAlertsAskFor(t *testing.T) {
	t.Parallel()
	if !strings.Contains(text(t, "prometheus/scrape.yml"), "job_name: reconciler\n") {
		t.Error("scrape.yml has another job")
	}
	monitor := documents[map[string]any](t, "kubernetes/daemon/podmonitor.yaml")[0]
	label := at(t, monitor, "spec", "jobLabel").(string)
	labels := at(t, documents[map[string]any](t, "kubernetes/daemon/deployment.yaml")[0], "spec", "template", "metadata", "labels")
	if at(t, labels, label) != "reconciler" {
		t.Errorf("the label %s makes another job", label)
	}
	if strings.Count(text(t, "prometheus/rules/daemon.yml"), `job="reconciler"`) < 5 {
		t.Error("the alerts ask for another job")
	}
}
