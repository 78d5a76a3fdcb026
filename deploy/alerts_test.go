package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

func TestEveryAlertSaysWhatItIsAndWhereItsRunbookIs(t *testing.T) {
	t.Parallel()
	for _, a := range alerts(t) {
		t.Run(a.Alert+" "+a.Labels["severity"], func(t *testing.T) {
			t.Parallel()
			if !strings.HasPrefix(a.Alert, "Reconciler") {
				t.Error("its name does not begin with Reconciler")
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
				t.Errorf("severity is %q", a.Labels["severity"])
			}
			for _, name := range []string{"summary", "description"} {
				if a.Annotations[name] == "" {
					t.Errorf("it has no %s", name)
				}
			}
			if !strings.Contains(a.Annotations["description"], "{{") {
				t.Error("its description holds no value of the alert")
			}
			want := "https://github.com/callreceipt/reconciler/blob/main/docs/runbooks/" + a.Alert + ".md"
			if a.Annotations["runbook_url"] != want {
				t.Errorf("runbook_url is %q, want %q", a.Annotations["runbook_url"], want)
			}
			runbook := text(t, filepath.Join(runbooks, a.Alert+".md"))
			for _, part := range []string{"# " + a.Alert + "\n", a.Labels["severity"], "../../deploy/prometheus/rules/" + a.file} {
				if !strings.Contains(strings.Join(strings.SplitN(runbook, "\n", 4)[:3], "\n"), part) {
					t.Errorf("the head of its runbook lacks %q", part)
				}
			}
		})
	}
}

func TestEveryAlertThatMustBeThereIs(t *testing.T) {
	t.Parallel()
	all := alerts(t)
	for _, name := range strings.Fields(`Down RunStale NeverSucceeded RunStuck OldestCallTooOld BacklogGrowing ManualQueueGrowing RetriesNotTaken
		DownstreamErrors BreakerOpen Contradictions CallIdChanged NotificationsStuck
		ArchiveBehind ArchiveStepsFail PartitionHeldTooLong PartitionsRunningOut DefaultPartitionFilling DetachPending`) {
		if !slices.ContainsFunc(all, func(a rule) bool { return a.Alert == "Reconciler"+name }) {
			t.Errorf("there is no Reconciler%s", name)
		}
	}
}

// promtoolTests is the part of a test file of promtool that is looked at here.
type promtoolTests struct {
	RuleFiles          []string `yaml:"rule_files"`
	EvaluationInterval string   `yaml:"evaluation_interval"`
	Tests              []struct {
		Name        string `yaml:"name"`
		Interval    string `yaml:"interval"`
		InputSeries []struct {
			Series string `yaml:"series"`
			Values string `yaml:"values"`
		} `yaml:"input_series"`
		AlertRuleTest []struct {
			EvalTime  string `yaml:"eval_time"`
			Alertname string `yaml:"alertname"`
			ExpAlerts []struct {
				ExpLabels      map[string]string `yaml:"exp_labels"`
				ExpAnnotations map[string]string `yaml:"exp_annotations"`
			} `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	} `yaml:"tests"`
}

func TestEveryAlertIsSeenFiringAndNotFiring(t *testing.T) {
	t.Parallel()
	firing, silent, tested := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, file := range files(t, "prometheus/tests/*.yml") {
		for _, doc := range documents[promtoolTests](t, file) {
			for _, of := range doc.RuleFiles {
				tested[filepath.Base(of)] = true
			}
			for _, test := range doc.Tests {
				for _, at := range test.AlertRuleTest {
					silent[at.Alertname] = silent[at.Alertname] || len(at.ExpAlerts) == 0
					for _, alert := range at.ExpAlerts {
						firing[at.Alertname+" "+alert.ExpLabels["severity"]] = true
					}
				}
			}
		}
	}
	for _, a := range alerts(t) {
		if !firing[a.Alert+" "+a.Labels["severity"]] {
			t.Errorf("no test of promtool sees %s (%s) fire", a.Alert, a.Labels["severity"])
		}
		if !silent[a.Alert] {
			t.Errorf("no test of promtool sees %s not fire", a.Alert)
		}
		if !tested[a.file] {
			t.Errorf("no test of promtool reads %s", a.file)
		}
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

func TestTheInhibitionsNameAlertsThatExist(t *testing.T) {
	t.Parallel()
	var names []string
	for _, a := range alerts(t) {
		names = append(names, a.Alert)
	}
	found := yamlBlock.FindStringSubmatch(text(t, "README.md"))
	if found == nil {
		t.Fatal("README.md has no inhibitions")
	}
	var config struct {
		InhibitRules []struct {
			SourceMatchers []string `yaml:"source_matchers"`
			TargetMatchers []string `yaml:"target_matchers"`
			Equal          []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	if err := yaml.UnmarshalWithOptions([]byte(found[1]), &config, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\bReconciler[A-Z]\w+`).FindAllString(found[1], -1) {
		if !slices.Contains(names, name) {
			t.Errorf("README.md speaks of %s, and there is no such alert", name)
		}
	}
}

func TestTheObjectForTheOperatorHasEveryGroup(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no sh")
	}
	from := files(t, "prometheus/rules/*.yml")
	out, err := exec.Command("sh", append([]string{"prometheus/prometheusrule.sh"}, from...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "prometheusrule.yaml")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	type object struct {
		Kind string     `yaml:"kind"`
		Spec ruleGroups `yaml:"spec"`
		// Read by nobody here.
		APIVersion string         `yaml:"apiVersion"`
		Metadata   map[string]any `yaml:"metadata"`
	}
	objects := documents[object](t, file)
	if len(objects) != 1 || objects[0].Kind != "PrometheusRule" {
		t.Fatalf("not one PrometheusRule: %v", objects)
	}
	var want ruleGroups
	for _, f := range from {
		want.Groups = append(want.Groups, documents[ruleGroups](t, f)[0].Groups...)
	}
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(objects[0].Spec)); diff != "" {
		t.Error(diff)
	}
}
