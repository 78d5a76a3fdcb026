// Package deploy holds what is deployed to the code, and its parts to each other.
package deploy

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/callreceipt/reconciler/internal/localpg"
)

const runbooks = "../docs/runbooks"

func TestMain(m *testing.M) { os.Exit(localpg.Main(m)) }

func text(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// files lists what a pattern matches, which must be something.
func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		t.Fatalf("%s matches nothing: %v", pattern, err)
	}
	return found
}

// documents decodes every document of a YAML file into a T, strictly unless T is a map.
func documents[T any](t *testing.T, file string) (all []T) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(text(t, file)), yaml.Strict())
	for {
		var one T
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, one)
	}
}

// rule is an alert or a recording rule.
type rule struct {
	Alert       string            `yaml:"alert"`
	Record      string            `yaml:"record"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`

	file string
}

type ruleGroups struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []rule `yaml:"rules"`
	} `yaml:"groups"`
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	for _, file := range files(t, "prometheus/rules/*.yml") {
		for _, doc := range documents[ruleGroups](t, file) {
			for _, group := range doc.Groups {
				for _, r := range group.Rules {
					r.file = filepath.Base(file)
					all = append(all, r)
				}
			}
		}
	}
	return all
}

func alerts(t *testing.T) (all []rule) {
	t.Helper()
	for _, r := range rules(t) {
		if r.Alert != "" {
			all = append(all, r)
		}
	}
	return all
}
